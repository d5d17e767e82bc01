#pragma once
// The doctor's check of object_store.url, in a process of its own (checks.h).

#include "doctor/checks.h"

namespace isthmus::app {

/// Stores, reads, lists and removes a small object, and reports the rate. `checkpoint`: bytes of one.
/// Throws as ObjectStore does.
void check_object_store_of(const DoctorPlace& place, double checkpoint, MachineReport& report);

}  // namespace isthmus::app
