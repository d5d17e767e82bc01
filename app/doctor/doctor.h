#pragma once
// `isthmus doctor`: finds what would make a run fail, before it starts. One process on each machine checks
// it. The hub, which takes the coordinator's place, has the machines dial each other and sends all of them
// the verdict.

#include <functional>
#include <optional>
#include <string>

#include "command_line/command_line.h"
#include "doctor/checks.h"

namespace isthmus::app {

struct DoctorRequest {
  /// nullopt if the config cannot be read; `problem` then says why.
  std::optional<Experiment> experiment;
  std::string problem;
  DoctorRole role = DoctorRole::everything;
  bool alone = true;  ///< checks only this machine; otherwise a worker connects to the hub, and a coordinator
                      ///< is the hub
  std::string name;
  std::string build;
  DeviceProbe device;
  std::vector<std::string> expected{};  ///< hub only: the workers to wait for; empty: those of the experiment
  std::chrono::seconds wait{60};
  bool json = false;
  int announce_fd = -1;  ///< hub only: receives "PORT\n" (announce_port)
};

/// Prints the table, or one JSON document. Returns exit_status_of the result. Forks: call it before this
/// process starts other threads.
[[nodiscard]] int run_doctor(const DoctorRequest& request);

/// The hub's verdict. `own` is the report on its own machine, which comes first in the result.
[[nodiscard]] Diagnosis judge(const MachineReport& own, const std::vector<std::string>& expected,
                              const std::vector<outer_sync::PreflightGuest>& guests,
                              const std::vector<outer_sync::PathTest>& paths);

/// `device`: as in DoctorPlace.
void add_doctor(CommandLine& commands, DeviceProbe device);

}  // namespace isthmus::app
