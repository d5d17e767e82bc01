#pragma once
// How fast a line may be sent on, found out while it is used. No sockets, no clock.

#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace isthmus::outer_sync::transport {

/// The rate is the fastest at which the line has delivered lately, as in BBR (Cardwell and others 2016), but
/// for all lanes of a peer together: congestion control of one alone cannot know that it shares the line with
/// seven others, and eight that probe on their own keep its queue full. Now and then, for a moment, a little
/// more is sent; what the line delivers of it raises the rate, and then more is tried at once. When round
/// trips are longer than they need be, a little less is sent for a moment, so that the line's queue empties.
class RateFollower {
 public:
  using Time = std::chrono::steady_clock::duration;
  struct Sample {
    Time now{};
    std::uint64_t delivered = 0;  ///< bytes that the other end has acknowledged since the start
    bool busy = false;            ///< something waits for the line, here or in its own queue
    bool full = false;            ///< there is more to send than may be sent: what is delivered is the most
    Time round_trip{};            ///< at present
    Time shortest{};              ///< round trip without a queue
  };

  /// To be called every few ten milliseconds.
  void sample(const Sample& seen);
  /// Bytes per second to send at most; 0: no limit, since the line's is not known yet.
  [[nodiscard]] std::uint64_t rate() const;
  /// What the line has delivered lately when it was busy, bytes per second; 0 before it was.
  [[nodiscard]] std::uint64_t delivers() const { return static_cast<std::uint64_t>(fast_); }

 private:
  enum class Phase { start, steady, probe, drain };
  void end_window(const Sample& seen);
  void remember(double rate);
  void choose_phase(double rate, const Sample& seen);
  void enter(Phase phase);
  [[nodiscard]] std::uint64_t paced(double gain) const;

  bool was_busy_ = false, was_full_ = false;  ///< all the time, in the window
  Time busy_since_{};
  bool in_window_ = false;
  Sample begin_;               ///< of the window
  std::deque<double> recent_;  ///< rates of the newest windows
  double fast_ = 0;            ///< the third of ten: the fastest are bursts of acknowledgements
  Phase phase_ = Phase::start;
  bool has_probed_ = false;
  int windows_ = 0;  ///< in this phase
  int since_drain_ = 0;
  double gain_ = 1, before_ = 0;  ///< of a probe, and what was delivered before it
};

/// A total in equal parts, but to nobody more than its cap (0: none); what one does not take goes to the
/// others.
[[nodiscard]] std::vector<std::uint64_t> fair_shares(std::uint64_t total,
                                                     std::span<const std::uint64_t> caps);

}  // namespace isthmus::outer_sync::transport
