#pragma once
// The doctor's check of replica.machines, in a process of its own (checks.h).

#include "doctor/checks.h"

namespace isthmus::app {

/// Runs `isthmus --version` on the machines of the other ranks by replica.reach, all at once, and compares
/// their builds with this one. Throws Error(config) if this machine does not have the first address.
void check_ranks_of(const DoctorPlace& place, MachineReport& report);

}  // namespace isthmus::app
