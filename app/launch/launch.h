#pragma once
// `isthmus launch`: starts a coordinator, a worker for each replica, and the reducers, on this machine and,
// over SSH, at sites that ask for it. It starts the same processes as by hand, and leaves none behind.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct LaunchRequest {
  std::filesystem::path config;  ///< the experiment's file; to resume, a run folder
  std::vector<std::string> assignments;
  bool resume = false;
  bool json = false;    ///< print one document to standard output at the end, all else to standard error
  int started_fd = -1;  ///< detached launch only: receives a line once all processes are started
  std::vector<std::string> program;  ///< command that starts this binary
};

/// Exit status: 0 finished, 130 stopped by Ctrl-C, 4 a process was killed, otherwise that of the process that
/// caused the failure.
[[nodiscard]] int run_launch(const LaunchRequest& request);

}  // namespace isthmus::app
