#pragma once
// Emulates a slow link with a long round trip at its sender, for laptops and comparisons. No sockets, no
// clock.

#include <chrono>
#include <cmath>
#include <cstdint>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/config/config.h"
#include "net/rate/pacer.h"

namespace isthmus::outer_sync::transport {

/// One direction between two members; all their lanes share its rate. Every message waits half the round trip
/// elsewhere. Here a frame waits a random part of the jitter as well, and, if one of its packets is lost,
/// another round trip, because TCP holds back the data behind it. (That losses make TCP slower than the link
/// is not emulated.)
class EmulatedLink {
 public:
  using Clock = std::chrono::steady_clock;

  explicit EmulatedLink(const EmulateConfig& link, std::uint64_t seed)
      : link_(link),
        seed_(seed),
        pacer_(link.rate.bytes_per_second() > 0 ? link.rate.bytes_per_second() : 1, {}) {}

  /// When the link accepts the next frame.
  [[nodiscard]] Clock::time_point free_at(Clock::time_point now) const {
    return has_rate() ? pacer_.next(now) : now;
  }
  /// Puts a frame on the link; returns its delay in addition to half the round trip.
  [[nodiscard]] Clock::duration put(std::size_t bytes, Clock::time_point now) {
    const auto leaves = has_rate() ? (pacer_.take(bytes, now), pacer_.next(now)) : now;
    double seconds = link_.jitter.seconds * chance();
    const auto packets = std::ceil(static_cast<double>(bytes) / payload_of_a_packet);
    if (chance() < 1 - std::pow(1 - link_.loss, packets)) seconds += link_.rtt.seconds;
    return leaves - now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  static constexpr double payload_of_a_packet = 1448;
  [[nodiscard]] bool has_rate() const { return link_.rate.bytes_per_second() > 0; }
  /// A random number from 0 to 1.
  [[nodiscard]] double chance() {
    return static_cast<double>(random_bits(seed_, 0, drawn_++) >> 11) * 0x1p-53;
  }

  EmulateConfig link_;
  std::uint64_t seed_, drawn_ = 0;
  Pacer pacer_;
};

}  // namespace isthmus::outer_sync::transport
