#pragma once
// `isthmus launch`: starts a coordinator, one worker per replica and those that only reduce, the same
// processes that one would start by hand, on this machine and, by ssh, at sites that say so; and makes sure
// that none is left behind.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct LaunchRequest {
  std::filesystem::path config;  ///< the experiment's file; when resuming, a run folder
  std::vector<std::string> assignments;
  bool resume = false;
  bool json = false;    ///< one document on standard output at the end, all else on standard error
  int started_fd = -1;  ///< of a launch that has been detached: gets a line once all is started
  std::vector<std::string> program;  ///< this binary: the first words of a command
};

/// Exit status: 0 finished, 130 stopped by Ctrl-C, otherwise that of the process that knows what went wrong;
/// 4 when one was killed.
[[nodiscard]] int run_launch(const LaunchRequest& request);

}  // namespace isthmus::app
