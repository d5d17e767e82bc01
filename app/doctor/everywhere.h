#pragma once
// `isthmus doctor` for a run with sites that are reached over SSH. Starts one doctor for each worker and one
// (the hub) for the coordinator, as `launch` would start those, and prints one table of all findings.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/sites/launch_sites.h"

namespace isthmus::app {

struct EverywhereRequest {
  LaunchConfig config;
  std::chrono::seconds wait{60};  ///< for all doctors to find each other
  bool json = false;
  std::vector<std::string> program;  ///< command that starts this binary
};

/// Whether `launch` would reach any site over SSH.
[[nodiscard]] bool has_remote_sites(const Experiment& experiment);

/// Prints the table, or one JSON document, and leaves no process running. Exit status as of `run_doctor`;
/// that of `launch` if a site cannot be reached; 130 after Ctrl-C. Throws Error for a config that `launch`
/// would refuse, and Error(network) if the hub ends without a verdict.
[[nodiscard]] int examine_everywhere(const EverywhereRequest& request);

}  // namespace isthmus::app
