#pragma once
// `isthmus trace summary`: where a replica's time went, out of its trace.

#include <cstdint>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace isthmus::app {

/// Of intervals with one name.
struct TraceTotal {
  std::uint64_t count = 0;
  double seconds = 0, longest = 0;
};

/// Where a GPU's time went. While it does nothing, what the training thread does meanwhile says why.
struct DeviceTotals {
  double seconds = 0;  ///< from its first interval's begin to the last one's end
  double busy = 0, idle_for_data = 0, idle_for_outer_loop = 0, idle_before_optimizer = 0, idle_otherwise = 0;
};

/// What a trace tells of the training thread and of the others.
struct TraceSummary {
  std::string process;
  double seconds = 0;    ///< from the first interval's begin to the last one's end
  bool cut_off = false;  ///< the file ends within an event: the process was killed
  /// By row of the timeline and name, but for the next one.
  std::map<std::pair<std::string, std::string>, TraceTotal> totals;
  /// Of "outer_wait" what lies between the gradient and the optimizer: others' gradients.
  TraceTotal before_optimizer;
  std::optional<DeviceTotals> device;  ///< of one that trains on a GPU
};

/// Reads Chrome trace events (Trace writes them), a piece at a time. `name` is the file's, for messages.
/// Throws Error(data) if it is no trace.
[[nodiscard]] TraceSummary read_trace(std::istream& in, const std::string& name);

/// Prints it. Throws Error(data) naming the file if it cannot be read or is no trace.
int run_trace_summary(const std::filesystem::path& file, bool as_json = false);

}  // namespace isthmus::app
