#pragma once
// The newest log lines of the coordinator, for the dashboard. Safe from any thread.

#include <cstddef>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::app {

class RecentLines {
 public:
  static constexpr std::size_t kept = 60, max_bytes = 400;  ///< lines, and bytes of each

  /// `text` must be printable. `unix_seconds`: when it was written.
  void add(double unix_seconds, std::string text);
  /// An array of objects, the newest first: time (Unix seconds), text.
  [[nodiscard]] nlohmann::ordered_json json() const;

 private:
  struct Line {
    double time;
    std::string text;
  };
  mutable std::mutex mutex_;
  std::deque<Line> lines_;  ///< oldest first
};

}  // namespace isthmus::app
