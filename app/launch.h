#pragma once
// `isthmus launch`: starts a coordinator, one worker per replica and those that only reduce on this machine,
// the same processes that one would start by hand, and makes sure that none is left behind.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct LaunchRequest {
  std::filesystem::path config;  ///< the experiment's file; when resuming, a run folder
  std::vector<std::string> assignments;
  bool resume = false;
  std::filesystem::path program;  ///< this binary
};

/// Exit status: 0 finished, 130 stopped by Ctrl-C, otherwise that of the process that knows what went wrong;
/// 4 when one was killed.
[[nodiscard]] int run_launch(const LaunchRequest& request);

}  // namespace isthmus::app
