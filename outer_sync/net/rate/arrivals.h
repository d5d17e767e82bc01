#pragma once
// What has arrived of what was sent to a peer, and when, as the peer says: acknowledgements alone do not tell
// it, since they may have waited in the queue of the way back. No sockets, no clock.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// When the bytes of a connection left.
class Departures {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// So many had left by then, since the connection began, and nothing more waits if it is `idle`. The more
  /// often this is said, the better.
  void left(std::uint64_t bytes, bool idle, Time now);
  /// When that many had left; none where that is not known (any more), as of the last ones before a pause:
  /// it began somewhen. What left before is then forgotten.
  [[nodiscard]] std::optional<Time> when(std::uint64_t bytes);
  /// Bytes that had left as it was last said.
  [[nodiscard]] std::uint64_t bytes() const { return points_.empty() ? 0 : points_.back().bytes; }

 private:
  struct Point {
    std::uint64_t bytes;
    bool idle;  ///< at that moment: a pause may have begun before
    Time at;
  };
  std::deque<Point> points_;  ///< neither bytes nor times ever fall
};

/// How long what is sent waits on its way there. The other end's clock is another one; how far the two are
/// apart nobody knows, but it stays nearly the same: what a delay is longer than the shortest was queue.
class QueueThere {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// `delay`: from leaving, by our clock, to arriving, by theirs. `beyond`: what round trips are longer than
  /// the shortest at present, which is the queues of both ways.
  void sample(Time delay, Time beyond, Time now);
  /// At the last sample; none before there was one.
  [[nodiscard]] std::optional<Time> queue() const { return queue_; }

 private:
  std::optional<Time> queue_;
  Time without_queue_{};  ///< a delay without a queue
  Time risen_{};
  int samples_ = 0;
};

/// Of all lanes to one peer together.
class Arrivals {
 public:
  using Time = std::chrono::steady_clock::duration;

  explicit Arrivals(std::size_t lanes) : lanes_(lanes) {}

  /// A connection takes that lane's place (0: none). Both ends give it the same number.
  void begun(std::size_t lane, std::uint64_t connection);
  /// Of what goes by that lane, as `Departures` wants to know it.
  void left(std::size_t lane, std::uint64_t bytes, bool idle, Time now) {
    lanes_.at(lane).departures.left(bytes, idle, now);
  }
  /// The peer says this. `beyond`: as in `QueueThere`, where it is known. What cannot be is passed over: a
  /// peer that lies has what is sent to it sent at a wrong rate. Throws Error(network) for what could not be
  /// reckoned with.
  void heard(const Arrived& said, std::optional<Time> beyond, Time now);

  /// Since the start, and when that was known last to have grown, by the peer's clock.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] Time at() const { return at_; }
  /// On the way there, when that was so; none while it is not known.
  [[nodiscard]] std::optional<Time> queue() const;

 private:
  struct Lane {
    std::uint64_t connection = 0;
    Departures departures{};
    std::uint64_t arrived = 0;
  };
  std::vector<Lane> lanes_;
  std::uint64_t bytes_ = 0;
  Time at_{}, heard_at_{};
  QueueThere queue_;
  bool all_there_ = false;  ///< nothing was on its way any more
};

/// What to say to a peer of what has come from it: nothing where that is hardly more than it is to say so.
class ArrivalReports {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// So many bytes have come by the connections of all lanes.
  [[nodiscard]] std::optional<Arrived> report(std::vector<Arrived::Lane> lanes, Time now);

 private:
  std::vector<Arrived::Lane> said_;
};

}  // namespace isthmus::outer_sync::transport
