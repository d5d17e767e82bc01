#include "transport/rate_follower.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr RateFollower::Time shortest_window = 100ms;
constexpr double averaged = 8;        ///< windows
constexpr double not_carried = 0.97;  ///< of what was sent, when the line has become slower
constexpr double slowest = 500'000;   ///< bytes per second: on slower lines TCP itself is good enough

// The queue that is aimed at, in seconds, and how it is kept.
constexpr double newest_part = 0.5;                                            ///< of samples in their mean
constexpr double target_part = 0.1, least_target = 0.005, most_target = 0.02;  ///< of the round trip
constexpr double round_trips_of_horizon = 8, shortest_horizon = 0.4;
constexpr double most_above = 0.05, most_below = 0.25;  ///< of the line's rate
constexpr double long_queue = 2;                        ///< targets

// The start: until there is a queue, or nothing more comes of sending more.
constexpr int queued_samples = 2;
constexpr double start_growth = 1.25;  ///< in a window; as BBR sees that the pipe is not full

// A climb: so much is tried beyond the rate, after the start and later; less on long paths, where it would
// fill the queue for longer.
constexpr double first_more = 0.25, usual_more = 0.1;
constexpr double worth_it = 0.4;  ///< there is more when that part of what was tried was delivered
constexpr int climb_windows = 2;  ///< what is sent in the first is acknowledged in the second
constexpr int soonest_climb = 8, latest_climb = 64;  ///< windows between two
constexpr int short_windows = 3;                     ///< in a row without a queue, and there is one at once

// A queue of others.
constexpr int patience = 10;       ///< windows
constexpr double shrinks = 0.9;    ///< to such a part: a queue that goes
constexpr double given_way = 0.9;  ///< to so much of the rate, in vain

double seconds(RateFollower::Time time) { return std::chrono::duration<double>(time).count(); }

double delivered_per_second(const RateFollower::Sample& from, const RateFollower::Sample& to) {
  return static_cast<double>(to.delivered - from.delivered) / std::max(seconds(to.now - from.now), 1e-6);
}

/// Where round trips become shorter, acknowledgements that had waited come on top of the others.
double surely_delivered_per_second(const RateFollower::Sample& from, const RateFollower::Sample& to) {
  const auto waited = std::max(RateFollower::Time{}, from.round_trip - to.round_trip);
  return static_cast<double>(to.delivered - from.delivered) /
         std::max(seconds(to.now - from.now + waited), 1e-6);
}

}  // namespace

void RateFollower::sample(const Sample& seen) {
  beyond_ += (seconds(seen.round_trip - seen.shortest) - beyond_) * newest_part;
  others_ = std::clamp(beyond_, 0.0, others_);
  queue_ = std::max(0.0, beyond_ - others_);
  target_ = std::clamp(target_part * seconds(seen.shortest), least_target, most_target);
  horizon_ = std::max(shortest_horizon, round_trips_of_horizon * seconds(seen.shortest));
  const auto before = std::exchange(last_, seen);
  if (!seen.busy) {
    if (in_window_ && seen.now - begin_.now >= window()) end_window();
    was_busy_ = in_window_ = false;
    queued_ = 0;
    return;
  }
  if (!std::exchange(was_busy_, true)) busy_since_ = seen.now;
  if (phase_ == Phase::start && find_first_queue(seen.delivered > before.delivered)) return;
  // In the first round trip after a pause nothing comes back.
  if (!in_window_ && seen.now - busy_since_ < seen.shortest) return;
  if (!in_window_) return begin_window();
  was_full_ = was_full_ && seen.full;
  sent_ = std::min(sent_, static_cast<double>(rate()));
  if (seen.now - begin_.now < 2 * window()) return;
  end_window();
  begin_window();
}

/// There is a queue as soon as the line is full, and what comes out of it is the line's rate. Returns whether
/// there is one; a window makes no sense then.
bool RateFollower::find_first_queue(bool delivers) {
  const bool queued = delivers && queue_ > long_queue * target_;
  queued_ = queued ? queued_ + 1 : 0;
  if (!queued) return false;
  if (queued_ == 1) begin_ = last_;
  in_window_ = false;
  if (queued_ > queued_samples && last_.now - begin_.now >= shortest_window) {
    line_ = std::max(line_, surely_delivered_per_second(begin_, last_));
    begin_climb(first_more);  // what comes out while acknowledgements wait too may not be all
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
}

void RateFollower::end_window() {
  const double rate = delivered_per_second(begin_, last_);
  switch (phase_) {
    case Phase::start: {
      const bool grows = rate > start_growth * line_;
      line_ = std::max(line_, rate);
      if (grows || !was_full_) break;
      begin_climb(first_more);
      break;
    }
    case Phase::climb:
      climb(surely_delivered_per_second(begin_, last_));
      break;
    case Phase::steady:
      learn(rate);
      if (more_is_due()) {
        begin_climb(usual_more);
      } else {
        look_for_others();
      }
      break;
  }
  rate_before_ = rate;
}

/// What is delivered while there is always more to send is what the line takes, or what was sent.
void RateFollower::learn(double rate) {
  const double most = std::max(rate, rate_before_);
  const bool crowded = queue_ > long_queue * target_;
  if (crowded && was_full_ && most < not_carried * std::min({sent_, sent_before_, line_})) {
    line_ = most_ = (line_ + most) / 2;  // it has become slower
    crowded_ = 0;
  } else if (rate > line_ || was_full_) {
    line_ += (rate - line_) / averaged;
  }
}

/// The queue may be one of acknowledgements on their way back, or of others who have gone: so now and then
/// more is tried all the same.
bool RateFollower::more_is_due() {
  if (!was_full_) return false;
  short_queue_ = queue_ < target_ / 2 ? short_queue_ + 1 : 0;
  return ++windows_ >= climb_after_ || short_queue_ >= short_windows;
}

void RateFollower::begin_climb(double more) {
  enter(Phase::climb);
  queue_before_ = queue_;
  more_ = more * seconds(shortest_window) / seconds(window());
}

void RateFollower::climb(double rate) {
  const bool queues = queue_ > queue_before_ + target_;  // what was sent beyond the line's rate
  if (rate > (1 + worth_it * more_) * line_ && !queues) {
    line_ = std::min(rate, (1 + more_) * line_);  // what is beyond what was sent is late acknowledgements
    windows_ = 0;
    climb_after_ = soonest_climb;
    return;
  }
  if (!was_full_ || (++windows_ < climb_windows && !queues)) return;
  climb_after_ = std::min(2 * climb_after_, latest_climb);
  enter(Phase::steady);
}

/// A queue that stays however much less is sent is not ours, and what was given up for it was so in vain.
void RateFollower::look_for_others() {
  if (queue_ < target_ || queue_ < shrinks * longest_) forget_others();
  longest_ = std::max(longest_, queue_);
  least_ = std::min(least_, queue_);
  most_ = std::max(most_, line_);
  crowded_ = queue_ > long_queue * target_ ? crowded_ + 1 : 0;
  if (crowded_ < patience && line_ > given_way * most_) return;
  others_ += least_;
  line_ = most_;
  forget_others();
}

void RateFollower::forget_others() {
  longest_ = least_ = queue_;
  most_ = line_;
  crowded_ = 0;
}

void RateFollower::enter(Phase phase) {
  phase_ = phase;
  windows_ = short_queue_ = 0;
  forget_others();
}

std::uint64_t RateFollower::rate() const {
  if (phase_ == Phase::start) return 0;
  double gain = 1 + std::clamp((target_ - queue_) / horizon_, -most_below, most_above);
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
