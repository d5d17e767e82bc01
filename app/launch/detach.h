#pragma once
// A launch that goes on without its terminal, and looking at it again: `launch --detach` and `isthmus
// attach`.
//
//   RUN/launch.log    what the launch says
//   RUN/launch.json   {"host", "pid", "begin"} of the launch; "exit_status" once it has ended
//   RUN/launch.seen   bytes of the log that were shown

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

/// Starts `command` (of a launch, to which --started-fd is added) in a session of its own, and waits until it
/// has started its processes; says then how to come back. Exit status: 0, or that of a launch that has
/// failed, whose log's end is shown. `json`: {"run", "folder", "pid", "log"} on standard output.
[[nodiscard]] int run_detached(std::vector<std::string> command, bool json);

/// In the detached launch, once it has its folder: from here on it speaks to the log there. Throws
/// Error(data).
void begin_log(const std::filesystem::path& folder, int started_fd);
/// Once all is started. Nothing happens for -1.
void say_started(int started_fd);
/// At its end.
void say_ended(const std::filesystem::path& folder, int status);

struct AttachRequest {
  std::filesystem::path folder;  ///< of the run
  bool stop = false;             ///< like Ctrl-C in front of the launch, then follow to the end
  bool all = false;              ///< from the log's beginning
};

/// Shows what is new in the log, and what comes. Ctrl-C leaves. Exit status: 0 when left, or stopped as
/// asked; else that of the launch. Throws Error(config) for a folder of no detached launch.
[[nodiscard]] int run_attach(const AttachRequest& request);

}  // namespace isthmus::app
