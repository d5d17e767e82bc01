#pragma once
// `isthmus trace`: how a replica spent its time, from its trace.

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "command_line/command_line.h"

namespace isthmus::app {

/// Total of all intervals with one name.
struct TraceTotal {
  std::uint64_t count = 0;
  double seconds = 0, longest = 0;
};

/// How a GPU spent its time. The reason for idle time is what the training thread did at that time.
struct DeviceTotals {
  double seconds = 0;  ///< from the start of the first interval to the end of the last
  double busy = 0, idle_for_data = 0, idle_for_outer_loop = 0, idle_before_optimizer = 0, idle_otherwise = 0;
};

/// Totals of the training thread and of the other threads.
struct TraceSummary {
  std::string process;
  double seconds = 0;    ///< from the start of the first interval to the end of the last
  bool cut_off = false;  ///< the file ends within an event: the process was killed
  /// By row of the timeline and name, without `before_optimizer`.
  std::map<std::pair<std::string, std::string>, TraceTotal> totals;
  /// The "outer_wait" intervals between gradient and optimizer, which wait for the gradients of other
  /// replicas.
  TraceTotal before_optimizer;
  std::optional<DeviceTotals> device;  ///< if the replica trains on a GPU
};

/// Reads the Chrome trace events that Trace writes, a piece at a time. `name` is the file's, for messages.
/// Throws Error(data) if the input is not a trace.
[[nodiscard]] TraceSummary read_trace(std::istream& in, const std::string& name);

/// Prints the summary. Throws Error(data) with the file's name if it cannot be read or is not a trace.
int run_trace_summary(const std::filesystem::path& file, bool as_json = false);

void add_trace(CommandLine& commands);

}  // namespace isthmus::app
