#pragma once
// A process that a site's agent owns.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/file.h"
#include "launch/agent/agent_messages.h"
#include "run/process/process.h"

namespace isthmus::app {

/// A worker or the coordinator. Its output goes to a file, so that nothing can block it, and is read from
/// there.
struct AgentChild {
  Process::Options options;
  std::vector<std::string> again;  ///< arguments added when the process is restarted
  std::filesystem::path metrics;
  std::uintmax_t metrics_before = 0;
  std::int64_t life = 0;  ///< number of this start, counted by the launch
  std::chrono::steady_clock::time_point wait_until;
  bool coordinates = false;
  int port = -1;  ///< descriptor on which the coordinator reports its port
  bool begun = false;
  bool killed = false;                                ///< by a launch
  bool end_reported = false, begin_reported = false;  ///< to the connected launch
  std::optional<int> status;
  std::unique_ptr<Process> process;
  int log = -1;
  LineBuffer unread;

  AgentChild() = default;
  AgentChild(const AgentChild&) = delete;
  AgentChild& operator=(const AgentChild&) = delete;
  ~AgentChild();
  /// Throws Error(data).
  void start();
  [[nodiscard]] bool running() const { return !status; }
  [[nodiscard]] std::filesystem::path folder() const { return metrics.parent_path(); }
  /// Whether the coordinator has left an unfinished run.
  [[nodiscard]] bool run_is_unfinished() const { return may_be_there(folder() / "coordinator.state"); }
};

/// 0 for a file that cannot be read.
[[nodiscard]] std::uintmax_t bytes_in(const std::filesystem::path& file);
/// Whether no process holds the folder.
[[nodiscard]] bool is_free(const std::filesystem::path& folder);

}  // namespace isthmus::app
