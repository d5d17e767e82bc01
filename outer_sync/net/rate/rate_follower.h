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

 private:
  enum class Phase { start, climb, steady };
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

  Phase phase_ = Phase::start;
  double line_ = 0;                ///< the path's rate, bytes per second
  double smoothed_ = 0;            ///< seconds: recent queueing delay
  double others_ = 0;              ///< seconds: the part of it that others cause
  double queue_ = 0, target_ = 0;  ///< seconds
  double horizon_ = 1;             ///< seconds in which the queue should reach the target
  Sample last_;
  bool was_busy_ = false;
  Time busy_since_{};

  bool in_window_ = false, was_full_ = false;  ///< was_full_: `full` during the whole window
  Sample begin_;                               ///< sample at the window's start
  double sent_ = 0, sent_before_ = 0;          ///< lowest rate allowed in this window, and in the last one
  double stands_ = 0;                          ///< seconds: shortest queue in the window
  double rate_before_ = 0;                     ///< rate delivered in the last window

  int queued_ = 0;                      ///< phase start: consecutive samples with a queue
  int windows_ = 0;                     ///< windows in this phase, or since a climb found more
  int short_queue_ = 0;                 ///< consecutive full windows with hardly any queue
  int climb_after_ = 8;                 ///< steady windows until the next climb
  double more_ = 0, queue_before_ = 0;  ///< phase climb: extra part of the rate, and queue at the start
  double next_more_;                    ///< extra part of the rate in the next climb
  int crowded_ = 0;                     ///< consecutive windows with a long queue
  double lately_ = 0;                   ///< mean queue of the last windows
  double longest_ = 0, least_ = 0;      ///< extremes of lately_ since it last shrank
  double most_ = 0;                     ///< highest rate since then
};

/// Splits a total into equal parts, none above its cap (0: no cap). The others share the rest of a capped
/// part.
[[nodiscard]] std::vector<std::uint64_t> fair_shares(std::uint64_t total,
                                                     std::span<const std::uint64_t> caps);

}  // namespace isthmus::outer_sync::transport
