#pragma once
// Finds the rate of a path while it is used. No sockets, no clock.

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::outer_sync::transport {

/// Takes as the path's rate what arrives, over all lanes together, while the path has a queue: one lane's
/// congestion control cannot know the others, and eight that probe alone keep the queue full. Sends a little
/// faster than that while the queue is shorter than some milliseconds, a little slower while it is longer
/// (like Copa: Arun and Balakrishnan 2018). So a faster path is noticed, and round trips stay short. A queue
/// that stays although less is sent belongs to others, and is subtracted while it stays.
class RateFollower {
 public:
  using Time = std::chrono::steady_clock::duration;
  struct Sample {
    Time now{};
    std::uint64_t arrived = 0;  ///< bytes that have arrived at the other end since the start
    Time arrived_at{};          ///< at what time, by any clock; unchanged: no news
    bool busy = false;          ///< data waits here or in the path's queue
    bool full = false;          ///< more data waits than the rate allows to send
    Time queue{};               ///< queueing delay on the way
    Time shortest{};            ///< round trip without a queue
  };

  RateFollower();
  /// Call every few tens of milliseconds.
  void sample(const Sample& seen);
  /// Upper limit in bytes per second; 0: no limit, since the path's rate is not known yet.
  [[nodiscard]] std::uint64_t rate() const;
  /// The path's rate in bytes per second; 0 before it is known.
  [[nodiscard]] std::uint64_t delivers() const { return static_cast<std::uint64_t>(line_); }
  /// The same; 0 if the path has not been used for ten minutes, because it may have changed.
  [[nodiscard]] std::uint64_t measured() const;
  /// The second most that arrived in a tenth of a second in the last minute or two, in bytes per second: the
  /// path is at least that fast, also if it never was full. (The most may be data that a loss had held up.)
  [[nodiscard]] std::uint64_t at_least() const;

 private:
  enum class Phase { start, climb, steady };
  void count_burst(const Sample& seen);
  [[nodiscard]] bool find_first_queue(bool arrives);
  [[nodiscard]] Time window() const;
  void forget_samples();
  void begin_window();
  void end_window();
  void learn(double rate);
  [[nodiscard]] bool more_is_due();
  void begin_climb();
  [[nodiscard]] bool climb_queues() const;
  void climb(double rate);
  void look_for_others();
  void forget_others();
  void enter(Phase phase);

  /// The time over which arrivals are counted.
  struct Window {
    bool open = false, was_full = false;  ///< was_full: `full` during all of it
    Sample begin;
    double sent = 0, sent_before = 0;  ///< lowest rate allowed in it, and in the last one
    double stands = 0;                 ///< seconds: shortest queue in it
    double rate_before = 0;            ///< rate delivered in the last one
  };
  struct Climb {
    double more = 0, queue_before = 0;  ///< extra part of the rate, and queue at the start
    double next_more = 0;               ///< extra part of the rate in the next climb
    int after = 8;                      ///< steady windows until the next climb
  };
  /// Highest rates of short times.
  struct Bursts {
    Sample begin;
    double highest = 0, second = 0;  ///< in this minute
    double before = 0;               ///< the second highest in the last one
    Time minute{};                   ///< when this one began
  };
  /// Traffic of others on the path.
  struct Others {
    double queue = 0;               ///< seconds: the part of the queueing delay that they cause
    double lately = 0;              ///< mean queue of the last windows
    double longest = 0, least = 0;  ///< extremes of `lately` since it last shrank
    double most = 0;                ///< highest rate since then
    int crowded = 0;                ///< consecutive windows with a long queue
  };

  Phase phase_ = Phase::start;
  double line_ = 0;                ///< the path's rate, bytes per second
  double smoothed_ = 0;            ///< seconds: recent queueing delay
  double queue_ = 0, target_ = 0;  ///< seconds
  double horizon_ = 1;             ///< seconds in which the queue should reach the target
  Sample last_;
  bool was_busy_ = false;
  Time busy_since_{}, busy_until_{};
  int queued_ = 0;       ///< phase start: consecutive samples with a queue
  int windows_ = 0;      ///< windows in this phase, or since a climb found more
  int short_queue_ = 0;  ///< consecutive full windows with hardly any queue
  Window window_;
  Climb climb_;
  Bursts bursts_;
  Others others_;
};

/// Splits a total into equal parts, none above its cap (0: no cap). The others share the rest of a capped
/// part.
[[nodiscard]] std::vector<std::uint64_t> fair_shares(std::uint64_t total,
                                                     std::span<const std::uint64_t> caps);

}  // namespace isthmus::outer_sync::transport
