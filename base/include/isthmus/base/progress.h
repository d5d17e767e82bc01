#pragma once
// A live progress line: a bar on a terminal, plain lines elsewhere.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

namespace isthmus {

struct ProgressState {
  std::uint64_t step = 0, steps = 0;
  double loss = 0;                  ///< nats per token, mean over replicas
  double tokens_per_second = 0;     ///< all replicas
  double utilization = 0;           ///< 0..1, inner compute time over wall time
  double wire_mbit_per_second = 0;  ///< sent, all replicas
  /// Time that is left; NaN if it is not known yet.
  double eta_seconds = std::numeric_limits<double>::quiet_NaN();
  std::string note;  ///< short, e.g. "2/2 live"
};

/// At most 79 columns, no newline: fits an 80-column terminal without wrapping.
[[nodiscard]] std::string format_progress(const ProgressState& state);

/// A bar of the share `done` (0..1; below 0: unknown, so no bar) before `text`, at most 79 columns.
[[nodiscard]] std::string format_bar(double done, std::string_view text);

/// Used by one thread.
class Progress {
 public:
  /// Without `terminal`, prints a whole line at most every `plain_every`; the first and the last state always
  /// appear.
  Progress(std::FILE* out, bool terminal, std::chrono::milliseconds plain_every = std::chrono::seconds(5))
      : out_(out), terminal_(terminal), plain_every_(plain_every) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(const ProgressState& state) { update(format_progress(state)); }
  /// Shows this line.
  void update(std::string line);
  /// Prints `text` as its own line above the bar; control characters in it become '?'.
  void message(std::string_view text);
  /// Ends the bar's line, once.
  void finish();

 private:
  void print_line();

  std::FILE* out_;
  bool terminal_;
  std::chrono::milliseconds plain_every_;
  std::chrono::steady_clock::time_point last_{};
  bool drawn_ = false;
  std::string line_, shown_;  // the latest state and the one on the screen
};

/// "1.2 GB", "34.1 kB": SI units.
[[nodiscard]] std::string format_bytes(double bytes);
/// "1.98 Gbit/s", "250 kbit/s": SI units, three digits.
[[nodiscard]] std::string format_rate(double bits_per_second);
/// "812.0M": SI units, for counts.
[[nodiscard]] std::string format_count(double count);
/// "1:02:03" or "2:03".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace isthmus
