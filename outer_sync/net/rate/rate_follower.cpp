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

RateFollower::RateFollower() { climb_.next_more = first_more; }

std::uint64_t RateFollower::measured() const {
  constexpr auto lasts = 10min;
  return last_.now - busy_until_ < lasts ? delivers() : 0;
}

std::uint64_t RateFollower::at_least() const {
  return std::max(static_cast<std::uint64_t>(std::max(bursts_.second, bursts_.before)), measured());
}

void RateFollower::count_burst(const Sample& seen) {
  constexpr auto minute = 60s;
  if (seen.now - bursts_.minute >= minute) {
    bursts_.before = bursts_.second;
    bursts_.highest = bursts_.second = 0;
    bursts_.minute = seen.now;
  }
  const auto took = seen.arrived_at - bursts_.begin.arrived_at;
  if (seen.arrived >= bursts_.begin.arrived && took < shortest_window) return;
  if (seen.arrived > bursts_.begin.arrived && bursts_.begin.arrived_at > Time{}) {
    const double rate = arrived_per_second(bursts_.begin, seen);
    bursts_.second = std::max(bursts_.second, std::min(rate, bursts_.highest));
    bursts_.highest = std::max(bursts_.highest, rate);
  }
  bursts_.begin = seen;
}

void RateFollower::sample(const Sample& seen) {
  count_burst(seen);
  const bool news = seen.arrived_at > last_.arrived_at;
  // Without traffic our own queue drains, and queues of others are not visible.
  if (news || !seen.busy)
    smoothed_ += ((seen.busy ? seconds(seen.queue) : others_.queue) - smoothed_) * newest_part;
  others_.queue = std::clamp(smoothed_, 0.0, others_.queue);
  queue_ = std::max(0.0, smoothed_ - others_.queue);
  target_ = std::clamp(target_part * seconds(seen.shortest), min_target, max_target);
  horizon_ = std::max(shortest_horizon, round_trips_of_horizon * seconds(seen.shortest));
  const auto before = std::exchange(last_, seen);
  if (seen.arrived < before.arrived)
    forget_samples();  // a peer is gone, and its bytes are not counted any more
  if (!seen.busy) {
    window_.stands = 0;
    if (window_.open && seen.arrived_at - window_.begin.arrived_at >= window()) end_window();
    was_busy_ = false;
    forget_samples();
    return;
  }
  if (!std::exchange(was_busy_, true)) busy_since_ = seen.now;
  busy_until_ = seen.now;
  if (window_.open) {
    window_.was_full = window_.was_full && seen.full;
    window_.sent = std::min(window_.sent, static_cast<double>(rate()));
    window_.stands = std::min(window_.stands, seconds(seen.queue) - others_.queue);
  }
  if (!news) return;
  if (phase_ == Phase::start && find_first_queue(seen.arrived > before.arrived)) return;
  // In the first round trip after a pause no report arrives.
  if (!window_.open && seen.now - busy_since_ < seen.shortest) return;
  if (!window_.open) return begin_window();
  const bool enough = phase_ == Phase::climb && climb_queues();
  if (seen.arrived_at - window_.begin.arrived_at < (enough ? 1 : 2) * window()) return;
  end_window();
  begin_window();
}

void RateFollower::forget_samples() {
  window_.open = false;
  queued_ = 0;
}

/// A queue shows that the path is full; what then arrives is its rate. Returns whether there is a queue;
/// windows make no sense then.
bool RateFollower::find_first_queue(bool arrives) {
  const bool queued = arrives && queue_ > long_queue * target_;
  queued_ = queued ? queued_ + 1 : 0;
  if (!queued) return false;
  if (queued_ == 1) window_.begin = last_;
  window_.open = false;
  if (queued_ > queued_samples && last_.arrived_at - window_.begin.arrived_at >= shortest_window) {
    line_ = std::max(line_, arrived_per_second(window_.begin, last_));
    enter(Phase::steady);
    climb_.after = 1;  // packets dropped from the queue may have held up those behind them
  }
  return true;
}

RateFollower::Time RateFollower::window() const { return std::max(shortest_window, last_.shortest); }

void RateFollower::begin_window() {
  window_.open = true;
  window_.begin = last_;
  window_.was_full = last_.full;
  window_.sent_before = window_.sent;
  window_.sent = static_cast<double>(rate());
  window_.stands = queue_;
}

void RateFollower::end_window() {
  const double rate = arrived_per_second(window_.begin, last_);
  switch (phase_) {
    case Phase::start: {
      const bool grows = rate > start_growth * line_;
      line_ = std::max(line_, rate);
      if (grows || !window_.was_full) break;
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
  window_.rate_before = rate;
}

/// While there is always a queue, the rate of arrival is the path's rate, even if little is sent. Without one
/// the path may take more, since data may have been held up here for a moment.
void RateFollower::learn(double rate) {
  const double most = std::max(rate, window_.rate_before);
  const bool crowded = queue_ > long_queue * target_;
  if (crowded && window_.was_full &&
      most < not_carried * std::min({window_.sent, window_.sent_before, line_})) {
    line_ = others_.most = (line_ + most) / 2;  // the path has become slower
    others_.crowded = 0;
  } else if (rate > line_ || window_.stands > target_) {
    // Arrivals far above the sending rate are data that a loss had held up.
    line_ += (std::min(rate, (1 + first_more) * line_) - line_) / averaged;
    if (!window_.was_full) others_.most = line_;
  }
}

/// While our own queue stands, the full rate has been found. A queue that others cause may have gone, or have
/// been an error.
bool RateFollower::more_is_due() {
  if (!window_.was_full) return false;
  short_queue_ = queue_ < target_ / 2 ? short_queue_ + 1 : 0;
  const bool stands = others_.queue == 0 && window_.stands > target_ / 2;
  return (++windows_ >= climb_.after && !stands) || short_queue_ >= short_windows;
}

void RateFollower::begin_climb() {
  enter(Phase::climb);
  climb_.queue_before = queue_;
  climb_.more = std::exchange(climb_.next_more, usual_more) * seconds(shortest_window) / seconds(window());
}

/// Whether the extra data has queued.
bool RateFollower::climb_queues() const { return queue_ > climb_.queue_before + target_; }

void RateFollower::climb(double rate) {
  const bool queues = climb_queues();
  if (rate > (1 + worth_it * climb_.more) * line_ && !queues) {
    line_ = std::min(rate, (1 + climb_.more) * line_);  // any more had been held up on its way
    windows_ = 0;
    climb_.after = soonest_climb;
    return;
  }
  if (window_.was_full && ++windows_ < climb_windows && !queues) return;
  if (window_.was_full || queues) climb_.after = std::clamp(2 * climb_.after, soonest_climb, latest_climb);
  enter(Phase::steady);
}

/// A queue that stays although less is sent is not ours, so the rate given up for it is restored.
void RateFollower::look_for_others() {
  others_.lately += (queue_ - others_.lately) * newest_window;
  if (others_.lately < target_ || others_.lately < shrinks * others_.longest) forget_others();
  others_.longest = std::max(others_.longest, others_.lately);
  others_.least = std::min(others_.least, others_.lately);
  others_.most = std::max(others_.most, line_);
  others_.crowded = others_.lately > long_queue * target_ ? others_.crowded + 1 : 0;
  if (others_.crowded < patience && line_ > given_way * others_.most) return;
  others_.queue += others_.least;
  line_ = others_.most;
  others_.lately = 0;
  forget_others();
}

void RateFollower::forget_others() {
  others_.longest = others_.least = others_.lately;
  others_.most = line_;
  others_.crowded = 0;
}

void RateFollower::enter(Phase phase) {
  phase_ = phase;
  others_.lately = queue_;
  windows_ = short_queue_ = 0;
  forget_others();
}

std::uint64_t RateFollower::rate() const {
  if (phase_ == Phase::start) return 0;
  double gain = 1 + std::clamp((target_ - queue_) / horizon_, -max_gain_below, max_gain_above);
  if (phase_ == Phase::climb) gain = 1 + climb_.more;
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
