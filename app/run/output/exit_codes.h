#pragma once
// Meaning of the exit statuses: the table behind the help, the docs and shell completion.

#include <array>
#include <string_view>

namespace isthmus::app {

struct ExitCode {
  int status;
  std::string_view name, meaning;
};

inline constexpr int stopped_exit = 130;

/// 2 to 5 are those of base/error.h.
inline constexpr std::array<ExitCode, 8> exit_codes = {{
    {0, "done", "success"},
    {1, "unexpected", "an unexpected error, for example out of memory; the message has details"},
    {2, "config", "the command line, a key or a value is wrong; the message names it, and what was expected"},
    {3, "data or files", "a corpus, checkpoint or other file is missing, damaged, or cannot be written"},
    {4, "network or a lost peer", "a peer is lost, refuses, or cannot be reached"},
    {5, "replicas or values diverged",
     "replicas disagree, a value is wrong or not finite, or a gate of `compare --certify` did not pass"},
    {stopped_exit, "stopped",
     "the run was stopped by Ctrl-C or `isthmus ctl stop`, with a checkpoint if it had begun; for a worker: "
     "it left the run after Ctrl-C, and the others continue"},
    {143, "left", "a worker left the run after SIGTERM; the others continue"},
}};

}  // namespace isthmus::app
