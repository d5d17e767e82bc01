#pragma once
// Checks of `isthmus doctor` on one machine. Each check runs in its own process for a limited time, so that a
// dead network drive, an unresponsive name server or a crash costs only one cell of the table.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "run/experiment/experiment.h"
#include "run/metrics/diagnosis.h"

namespace isthmus::app {

/// This machine's role in the run.
enum class DoctorRole : std::uint8_t {
  worker,       ///< one worker
  reducer,      ///< one reducer
  coordinator,  ///< the coordinator alone
  everything,   ///< coordinator and all workers, as `launch` starts them
};

/// Finds the device that training would use on this machine, or what training lacks. May throw Error(config).
/// Empty in isthmus-coordinator, which does not train.
using DeviceProbe = std::function<Finding(const Experiment&)>;

struct DoctorPlace {
  const Experiment& experiment;
  DoctorRole role = DoctorRole::everything;
  std::string name;   ///< of the worker or reducer; empty for the other roles
  std::string build;  ///< of this binary
  DeviceProbe device;
};

/// Forks: call it before this process starts other threads.
[[nodiscard]] MachineReport examine_machine(const DoctorPlace& place);

/// Runs `work` in a child process and returns its result; nullopt if it exceeds `limit`, dies, or returns
/// more than a report may hold.
[[nodiscard]] std::optional<std::string> within(std::chrono::milliseconds limit,
                                                const std::function<std::string()>& work);

}  // namespace isthmus::app
