#pragma once
// What `isthmus doctor` looks at on one machine. Every check runs in a process of its own for a limited time,
// so that a dead network drive, a name server that does not answer or a fault costs one cell of the table.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "doctor/report.h"
#include "run/experiment.h"

namespace isthmus::app {

/// What this machine is to the run.
enum class DoctorRole : std::uint8_t {
  worker,       ///< one that trains
  coordinator,  ///< it alone
  everything,   ///< coordinator and all workers, as `launch` starts them
};

/// Finds the device that training would use on this machine, or what training lacks. May throw Error(config).
/// Empty in isthmus-coordinator, which does not train.
using DeviceProbe = std::function<Finding(const Experiment&)>;

struct DoctorPlace {
  const Experiment& experiment;
  DoctorRole role = DoctorRole::everything;
  std::string name;   ///< of the worker
  std::string build;  ///< of this binary
  DeviceProbe device;
};

/// Only before this process has other threads.
[[nodiscard]] MachineReport examine_machine(const DoctorPlace& place);

/// What `work` returns, made in a child process; nothing when it has taken longer than `limit`, or has died.
[[nodiscard]] std::optional<std::string> within(std::chrono::milliseconds limit,
                                                const std::function<std::string()>& work);

}  // namespace isthmus::app
