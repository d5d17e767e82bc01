#include "net/rate/rate_follower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "isthmus/base/time.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr RateFollower::Time shortest_window = 100ms;
constexpr double averaged = 8;        ///< windows in the mean
constexpr double not_carried = 0.97;  ///< if less of the sent bytes arrives, the path has become slower
constexpr double slowest = 500'000;   ///< bytes per second: on slower paths TCP itself is good enough

// Target of the queue, in seconds, and its control.
constexpr double newest_part = 0.5;  ///< weight of the newest sample in the mean
constexpr double target_part = 0.1, min_target = 0.01, max_target = 0.02;  ///< of the round trip
constexpr double round_trips_of_horizon = 4, shortest_horizon = 0.4;
constexpr double max_gain_above = 0.05, max_gain_below = 0.25;  ///< parts of the path's rate
constexpr double long_queue = 2;                                ///< targets

// Phase start: until there is a queue, or sending more delivers no more.
constexpr int queued_samples = 2;
constexpr double start_growth = 1.25;  ///< growth in a window by which the path is not full yet, as in BBR

// Phase climb: extra part of the rate that is tried, after the start and later; less on long paths, where it
// would fill the queue for longer.
constexpr double first_more = 0.25, usual_more = 0.1;
constexpr double worth_it = 0.4;  ///< a climb has found more if this part of the extra rate was delivered
constexpr int climb_windows = 2;  ///< data sent in the first is reported in the second
constexpr int soonest_climb = 8, latest_climb = 64;  ///< windows between two climbs
constexpr int short_windows = 3;  ///< consecutive windows without a queue that start a climb at once

// Queues that others cause.
constexpr int patience = 10;            ///< windows with a long queue
constexpr double newest_window = 0.25;  ///< weight of the newest window in the mean
constexpr double shrinks = 0.8;         ///< a queue that falls to this part is shrinking
constexpr double given_way = 0.9;       ///< a rate reduced to this part was reduced in vain

double arrived_per_second(const RateFollower::Sample& from, const RateFollower::Sample& to) {
  return static_cast<double>(to.arrived - from.arrived) /
         std::max(seconds(to.arrived_at - from.arrived_at), 1e-6);
}

}  // namespace

RateFollower::RateFollower() : next_more_(first_more) {}

void RateFollower::sample(const Sample& seen) {
  const bool news = seen.arrived_at > last_.arrived_at;
  // Without traffic our own queue drains, and queues of others are not visible.
  if (news || !seen.busy)
    smoothed_ += ((seen.busy ? seconds(seen.queue) : others_) - smoothed_) * newest_part;
  others_ = std::clamp(smoothed_, 0.0, others_);
  queue_ = std::max(0.0, smoothed_ - others_);
  target_ = std::clamp(target_part * seconds(seen.shortest), min_target, max_target);
  horizon_ = std::max(shortest_horizon, round_trips_of_horizon * seconds(seen.shortest));
  const auto before = std::exchange(last_, seen);
  if (seen.arrived < before.arrived)
    forget_samples();  // a peer is gone, and its bytes are not counted any more
  if (!seen.busy) {
    stands_ = 0;
    if (in_window_ && seen.arrived_at - begin_.arrived_at >= window()) end_window();
    was_busy_ = false;
    forget_samples();
    return;
  }
  if (!std::exchange(was_busy_, true)) busy_since_ = seen.now;
  if (in_window_) {
    was_full_ = was_full_ && seen.full;
    sent_ = std::min(sent_, static_cast<double>(rate()));
    stands_ = std::min(stands_, seconds(seen.queue) - others_);
  }
  if (!news) return;
  if (phase_ == Phase::start && find_first_queue(seen.arrived > before.arrived)) return;
  // In the first round trip after a pause no report arrives.
  if (!in_window_ && seen.now - busy_since_ < seen.shortest) return;
  if (!in_window_) return begin_window();
  const bool enough = phase_ == Phase::climb && climb_queues();
  if (seen.arrived_at - begin_.arrived_at < (enough ? 1 : 2) * window()) return;
  end_window();
  begin_window();
}

void RateFollower::forget_samples() {
  in_window_ = false;
  queued_ = 0;
}

/// A queue shows that the path is full; what then arrives is its rate. Returns whether there is a queue;
/// windows make no sense then.
bool RateFollower::find_first_queue(bool arrives) {
  const bool queued = arrives && queue_ > long_queue * target_;
  queued_ = queued ? queued_ + 1 : 0;
  if (!queued) return false;
  if (queued_ == 1) begin_ = last_;
  in_window_ = false;
  if (queued_ > queued_samples && last_.arrived_at - begin_.arrived_at >= shortest_window) {
    line_ = std::max(line_, arrived_per_second(begin_, last_));
    enter(Phase::steady);
    climb_after_ = 1;  // packets dropped from the queue may have held up those behind them
  }
  return true;
}

RateFollower::Time RateFollower::window() const { return std::max(shortest_window, last_.shortest); }

void RateFollower::begin_window() {
  in_window_ = true;
  begin_ = last_;
  was_full_ = last_.full;
  sent_before_ = sent_;
  sent_ = static_cast<double>(rate());
  stands_ = queue_;
}

void RateFollower::end_window() {
  const double rate = arrived_per_second(begin_, last_);
  switch (phase_) {
    case Phase::start: {
      const bool grows = rate > start_growth * line_;
      line_ = std::max(line_, rate);
      if (grows || !was_full_) break;
      begin_climb();
      break;
    }
    case Phase::climb:
      climb(rate);
      break;
    case Phase::steady:
      learn(rate);
      if (more_is_due()) {
        begin_climb();
      } else {
        look_for_others();
      }
      break;
  }
  rate_before_ = rate;
}

/// While there is always a queue, the rate of arrival is the path's rate, even if little is sent. Without one
/// the path may take more, since data may have been held up here for a moment.
void RateFollower::learn(double rate) {
  const double most = std::max(rate, rate_before_);
  const bool crowded = queue_ > long_queue * target_;
  if (crowded && was_full_ && most < not_carried * std::min({sent_, sent_before_, line_})) {
    line_ = most_ = (line_ + most) / 2;  // the path has become slower
    crowded_ = 0;
  } else if (rate > line_ || stands_ > target_) {
    // Arrivals far above the sending rate are data that a loss had held up.
    line_ += (std::min(rate, (1 + first_more) * line_) - line_) / averaged;
    if (!was_full_) most_ = line_;
  }
}

/// While our own queue stands, the full rate has been found. A queue that others cause may have gone, or have
/// been an error.
bool RateFollower::more_is_due() {
  if (!was_full_) return false;
  short_queue_ = queue_ < target_ / 2 ? short_queue_ + 1 : 0;
  const bool stands = others_ == 0 && stands_ > target_ / 2;
  return (++windows_ >= climb_after_ && !stands) || short_queue_ >= short_windows;
}

void RateFollower::begin_climb() {
  enter(Phase::climb);
  queue_before_ = queue_;
  more_ = std::exchange(next_more_, usual_more) * seconds(shortest_window) / seconds(window());
}

/// Whether the extra data has queued.
bool RateFollower::climb_queues() const { return queue_ > queue_before_ + target_; }

void RateFollower::climb(double rate) {
  const bool queues = climb_queues();
  if (rate > (1 + worth_it * more_) * line_ && !queues) {
    line_ = std::min(rate, (1 + more_) * line_);  // any more had been held up on its way
    windows_ = 0;
    climb_after_ = soonest_climb;
    return;
  }
  if (was_full_ && ++windows_ < climb_windows && !queues) return;
  if (was_full_ || queues) climb_after_ = std::clamp(2 * climb_after_, soonest_climb, latest_climb);
  enter(Phase::steady);
}

/// A queue that stays although less is sent is not ours, so the rate given up for it is restored.
void RateFollower::look_for_others() {
  lately_ += (queue_ - lately_) * newest_window;
  if (lately_ < target_ || lately_ < shrinks * longest_) forget_others();
  longest_ = std::max(longest_, lately_);
  least_ = std::min(least_, lately_);
  most_ = std::max(most_, line_);
  crowded_ = lately_ > long_queue * target_ ? crowded_ + 1 : 0;
  if (crowded_ < patience && line_ > given_way * most_) return;
  others_ += least_;
  line_ = most_;
  lately_ = 0;
  forget_others();
}

void RateFollower::forget_others() {
  longest_ = least_ = lately_;
  most_ = line_;
  crowded_ = 0;
}

void RateFollower::enter(Phase phase) {
  phase_ = phase;
  lately_ = queue_;
  windows_ = short_queue_ = 0;
  forget_others();
}

std::uint64_t RateFollower::rate() const {
  if (phase_ == Phase::start) return 0;
  double gain = 1 + std::clamp((target_ - queue_) / horizon_, -max_gain_below, max_gain_above);
  if (phase_ == Phase::climb) gain = 1 + more_;
  return static_cast<std::uint64_t>(std::max(slowest, gain * line_));
}

std::vector<std::uint64_t> fair_shares(std::uint64_t total, std::span<const std::uint64_t> caps) {
  std::vector<std::size_t> order(caps.size());
  std::iota(order.begin(), order.end(), 0);
  const auto cap = [&](std::size_t i) { return caps[i] == 0 ? UINT64_MAX : caps[i]; };
  std::ranges::sort(order, {}, cap);
  std::vector<std::uint64_t> shares(caps.size());
  for (std::size_t n = 0; n < order.size(); ++n) {
    shares[order[n]] = std::min(cap(order[n]), total / (order.size() - n));
    total -= shares[order[n]];
  }
  return shares;
}

}  // namespace isthmus::outer_sync::transport
