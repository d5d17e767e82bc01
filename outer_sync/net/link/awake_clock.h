#pragma once
// A clock for detecting silent peers: counts only time in which this process could have received their
// messages.

#include <algorithm>
#include <chrono>

namespace isthmus::outer_sync::transport {

/// Stops while the process does (a suspended machine, a stopped process, a starved thread): messages sent
/// meanwhile lie unread in the sockets, so their senders were not silent. Used by the io thread, which must
/// call it more often than once per `longest_step`.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(Clock::duration longest_step) : longest_step_(longest_step) {}

  /// Advances by the time since the last call, but at most by `longest_step`.
  [[nodiscard]] Clock::duration now() { return at(Clock::now()); }
  [[nodiscard]] Clock::duration at(Clock::time_point real) {
    awake_ += std::min(real - last_, longest_step_);
    last_ = real;
    return awake_;
  }

 private:
  Clock::duration longest_step_;
  Clock::time_point last_ = Clock::now();
  Clock::duration awake_{};
};

}  // namespace isthmus::outer_sync::transport
