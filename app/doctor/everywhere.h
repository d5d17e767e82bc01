#pragma once
// `isthmus doctor` of a run whose sites are reached by ssh: a doctor in each worker's place and one in the
// coordinator's, started as `launch` would start those, and one table of what all of them have found.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launch/launch_sites.h"

namespace isthmus::app {

struct EverywhereRequest {
  LaunchConfig config;
  std::chrono::seconds wait{60};  ///< until all doctors have found each other
  bool json = false;
  std::vector<std::string> program;  ///< this binary: the first words of a command
};

/// Whether `launch` would reach any of its sites by ssh.
[[nodiscard]] bool has_remote_sites(const Experiment& experiment);

/// Prints the table, or one JSON document. Nothing that it starts is left running. Exit status as of
/// `run_doctor`; where a site cannot be reached, that of `launch`; 130 after Ctrl-C. Throws Error for a
/// config that `launch` would refuse, and Error(network) where the doctor in the coordinator's place has no
/// verdict.
[[nodiscard]] int examine_everywhere(const EverywhereRequest& request);

}  // namespace isthmus::app
