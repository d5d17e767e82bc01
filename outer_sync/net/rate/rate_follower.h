#pragma once
// How fast a line may be sent on, found out while it is used. No sockets, no clock.

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::outer_sync::transport {

/// The line's rate is what comes out of it while there is a queue in it, of all lanes of a peer together:
/// congestion control of one alone cannot know that it shares the line with seven others, and eight that
/// probe on their own keep its queue full. It is kept just full: where the queue is shorter than some
/// milliseconds a little more is sent than the line's rate, where it is longer a little less, in proportion
/// (as Copa aims at a short queue: Arun and Balakrishnan 2018). So a line that has become faster is noticed
/// by what arrives, and no round trip is longer than it need be. A queue that stays although less is sent is
/// not this line's own, and is left out of account while it stays.
class RateFollower {
 public:
  using Time = std::chrono::steady_clock::duration;
  struct Sample {
    Time now{};
    std::uint64_t arrived = 0;  ///< bytes that have arrived at the other end since the start
    Time arrived_at{};          ///< when that was so, by any clock; as before: nothing new is known
    bool busy = false;          ///< something waits for the line, here or in its own queue
    bool full = false;          ///< there is more to send than may be sent: what arrives is the most
    Time queue{};               ///< that what is sent waits in on its way
    Time shortest{};            ///< round trip without a queue
  };

  RateFollower();
  /// To be called every few ten milliseconds.
  void sample(const Sample& seen);
  /// Bytes per second to send at most; 0: no limit, since the line's is not known yet.
  [[nodiscard]] std::uint64_t rate() const;
  /// What the line takes, bytes per second; 0 before that is known.
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
  double line_ = 0;                ///< bytes per second
  double smoothed_ = 0;            ///< seconds, the queue of late
  double others_ = 0;              ///< that of it which is not our queue
  double queue_ = 0, target_ = 0;  ///< seconds
  double horizon_ = 1;             ///< seconds in which a queue is to come to the target
  Sample last_;
  bool was_busy_ = false;
  Time busy_since_{};

  bool in_window_ = false, was_full_ = false;  ///< full all the time, in the window
  Sample begin_;                               ///< of the window
  double sent_ = 0, sent_before_ = 0;          ///< least rate allowed in the window, and in the one before
  double stands_ = 0;                          ///< seconds, the shortest queue in the window
  double rate_before_ = 0;                     ///< what the window before delivered

  int queued_ = 0;       ///< samples in a row with a queue, in the start
  int windows_ = 0;      ///< in this phase, or since a climb found more
  int short_queue_ = 0;  ///< windows in a row with hardly any queue though there was enough to send
  int climb_after_ = 8;  ///< windows, steady ones
  double more_ = 0, queue_before_ = 0;  ///< of a climb: what is tried, and the queue at its beginning
  double next_more_;                    ///< of the next one
  int crowded_ = 0;                     ///< windows in a row with a long queue
  double lately_ = 0;                   ///< mean queue of the last windows
  double longest_ = 0, least_ = 0;      ///< of that, since it was last seen to shrink
  double most_ = 0;                     ///< the line's rate since then
};

/// A total in equal parts, but to nobody more than its cap (0: none); what one does not take goes to the
/// others.
[[nodiscard]] std::vector<std::uint64_t> fair_shares(std::uint64_t total,
                                                     std::span<const std::uint64_t> caps);

}  // namespace isthmus::outer_sync::transport
