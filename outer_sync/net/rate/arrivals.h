#pragma once
// Measures what has arrived at a peer, and when, from the peer's reports. Acknowledgements alone do not show
// it, since they may have waited in a queue on the way back. No sockets, no clock.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// Remembers when the bytes of a connection left.
class SendTimes {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// Records that `bytes` had left by `now`, since the connection began; `idle`: no more bytes wait. Call it
  /// as often as possible.
  void left(std::uint64_t bytes, bool idle, Time now);
  /// When that many bytes had left; nullopt if unknown, e.g. for bytes sent just before an idle period with
  /// unknown start. Forgets earlier points.
  [[nodiscard]] std::optional<Time> when(std::uint64_t bytes);
  /// Bytes that had left at the last call of `left`.
  [[nodiscard]] std::uint64_t bytes() const { return points_.empty() ? 0 : points_.back().bytes; }

 private:
  struct Point {
    std::uint64_t bytes;
    bool idle;  ///< no more bytes waited; an idle period may have begun before
    Time at;
  };
  std::deque<Point> points_;  ///< ascending in bytes and time
};

/// Estimates the queueing delay on the way to the other end. The clocks of the two ends differ by an unknown
/// but nearly constant offset, so the part of a delay above the shortest one is queueing.
class QueueingDelay {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// `delay`: from leaving, by our clock, to arriving, by the other end's. `beyond`: current round trip minus
  /// the shortest one, which is the queueing of both directions.
  void sample(Time delay, Time beyond, Time now);
  /// The queueing delay at the last sample; nullopt before the first.
  [[nodiscard]] std::optional<Time> queue() const { return queue_; }

 private:
  std::optional<Time> queue_;
  Time without_queue_{};  ///< delay without a queue
  Time risen_{};
  int samples_ = 0;
};

/// Arrivals at one peer, over all lanes together.
class Arrivals {
 public:
  using Time = std::chrono::steady_clock::duration;

  explicit Arrivals(std::size_t lanes) : lanes_(lanes) {}

  /// The lane has a new connection, or none (0). Both ends give a connection the same number.
  void begun(std::size_t lane, std::uint64_t connection);
  /// Records bytes that have left on that lane (SendTimes::left).
  void left(std::size_t lane, std::uint64_t bytes, bool idle, Time now) {
    lanes_.at(lane).send_times.left(bytes, idle, now);
  }
  /// Handles the peer's report. `beyond`: as in QueueingDelay, if known. Implausible values are ignored: a
  /// peer that lies only gets its data at a wrong rate. Throws Error(network) for values that would overflow.
  void heard(const Arrived& said, std::optional<Time> beyond, Time now);

  /// Bytes arrived since the start, and when they last grew, by the peer's clock.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] Time at() const { return at_; }
  /// Queueing delay on the way there, at that time; nullopt if unknown.
  [[nodiscard]] std::optional<Time> queue() const;

 private:
  struct Lane {
    std::uint64_t connection = 0;
    SendTimes send_times{};
    std::uint64_t arrived = 0;
  };
  std::vector<Lane> lanes_;
  std::uint64_t bytes_ = 0;
  Time at_{}, heard_at_{};
  QueueingDelay queue_;
  bool all_there_ = false;  ///< hardly anything was in flight
};

/// Decides what to report to a peer about bytes that have arrived from it: nothing if they are hardly more
/// than the report itself.
class ArrivalReports {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// The report to send, given the bytes arrived on each lane; nullopt if it is not worth sending.
  [[nodiscard]] std::optional<Arrived> report(std::vector<Arrived::Lane> lanes, Time now);

 private:
  std::vector<Arrived::Lane> said_;
};

}  // namespace isthmus::outer_sync::transport
