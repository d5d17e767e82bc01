#pragma once
// Limits the rate at which bytes are sent.

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace isthmus::outer_sync::transport {

/// A token bucket that fills at a rate and holds `depth` of it. Reads no clock. Streams that share a Pacer
/// share its rate.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto usual_depth = std::chrono::milliseconds(50);

  /// Requires `bytes_per_second` > 0.
  explicit Pacer(std::uint64_t bytes_per_second, Clock::duration depth = usual_depth);
  /// Sets the rate from now on. Requires `bytes_per_second` > 0.
  void set_rate(std::uint64_t bytes_per_second);
  /// Earliest time at which bytes may be sent.
  [[nodiscard]] Clock::time_point next(Clock::time_point now) const;
  /// Takes `bytes` out of the bucket; returns when they may be sent.
  Clock::time_point take(std::size_t bytes, Clock::time_point now);
  /// Bytes in a full bucket.
  [[nodiscard]] double depth_in_bytes() const;

 private:
  double bytes_per_second_;
  Clock::duration depth_;
  Clock::time_point next_{};
};

}  // namespace isthmus::outer_sync::transport
