#pragma once
// A launch that continues without its terminal, and attaching to it: `launch --detach` and `isthmus attach`.
//
//   RUN/launch.log    output of the launch
//   RUN/launch.json   {"host", "pid", "begin"} of the launch; "exit_status" once it has ended
//   RUN/launch.seen   bytes of the log that attach has shown

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

/// Starts `command` (a launch, to which --started-fd is added) in a session of its own, waits until it has
/// started its processes, and prints how to attach. Exit status: 0, or that of a launch that failed, after
/// printing the end of its log. `json`: prints {"run", "folder", "pid", "log"} instead.
[[nodiscard]] int run_detached(std::vector<std::string> command, bool json);

/// Throws Error(config) if a detached launch of this run still runs on this machine or, with `lost`, has left
/// the run's processes behind.
void check_no_launch(const std::filesystem::path& folder, bool lost);

/// Called by the detached launch once it has its folder: redirects its output to the log there. Throws
/// Error(data).
void begin_log(const std::filesystem::path& folder, int started_fd);
/// Called once all processes are started. Does nothing for -1.
void report_started(int started_fd);
/// Called at the end of the detached launch: records the exit status.
void record_end(const std::filesystem::path& folder, int status);

struct AttachRequest {
  std::filesystem::path folder;  ///< of the run
  bool stop = false;             ///< interrupt the launch as Ctrl-C does, then follow it to the end
  bool all = false;              ///< show the log from its beginning
};

/// Prints new lines of the log until the launch ends; Ctrl-C detaches. Exit status: 0 after detaching or a
/// requested stop, otherwise that of the launch. Throws Error(config) if the folder has no detached launch.
[[nodiscard]] int run_attach(const AttachRequest& request);

}  // namespace isthmus::app
