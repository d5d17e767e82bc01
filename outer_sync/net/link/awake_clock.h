#pragma once
// The time by which others are called silent: only such in which this process could have heard them.

#include <algorithm>
#include <chrono>

namespace isthmus::outer_sync::transport {

/// Stands still while the process does (a suspended machine, a stopped process, a thread that gets no
/// processor): what was sent meanwhile lies unread in the sockets, and whoever sent it was not silent.
/// Belongs to the io thread, which has to ask more often than `longest_step`.
class AwakeClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AwakeClock(Clock::duration longest_step) : longest_step_(longest_step) {}

  /// Advances by what has passed since the last call, at most by `longest_step`.
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
