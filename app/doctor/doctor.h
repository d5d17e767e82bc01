#pragma once
// `isthmus doctor`: what would fail later, before the run. One process on each machine looks at it; the one
// in the coordinator's place has them dial each other, and tells all what came out.

#include <functional>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "doctor/checks.h"

namespace isthmus::app {

struct DoctorRequest {
  /// Nothing where the config cannot be read; `problem` says why then.
  std::optional<Experiment> experiment;
  std::string problem;
  DoctorRole role = DoctorRole::everything;
  bool alone = true;  ///< looks at this machine only; else a worker calls on the hub, and a coordinator is it
  std::string name;
  std::string build;
  DeviceProbe device;
  std::vector<std::string> expected{};  ///< workers, by a hub; empty: those of the experiment
  std::chrono::seconds wait{60};
  bool json = false;
  int announce_fd = -1;  ///< of a hub: gets "PORT\n", for whoever starts the others (announce_port)
};

/// Prints the table, or one JSON document. Returns 0 when nothing is red; else 2, 3 or 4 by what the first
/// red cell is about, as with Error. Only before this process has other threads.
[[nodiscard]] int run_doctor(const DoctorRequest& request);

/// What the hub makes of all that it has heard. Its own machine is the first.
[[nodiscard]] Diagnosis judge(const MachineReport& own, const std::vector<std::string>& expected,
                              const std::vector<outer_sync::PreflightGuest>& guests,
                              const std::vector<outer_sync::PathTest>& paths);

/// `device` as in DoctorPlace.
void add_doctor(CommandLine& commands, DeviceProbe device);

}  // namespace isthmus::app
