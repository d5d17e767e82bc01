#include "transport/rate_follower.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr RateFollower::Time shortest_window = 100ms;
constexpr std::size_t most_recent = 10;  ///< windows, as many as round trips in BBR's filter
constexpr int probe_windows = 2;         ///< what is sent in the first is acknowledged in the second
constexpr int steady_windows = 16;       ///< between two probes
constexpr double start_growth = 1.25;    ///< BBR's sign that the pipe is not full
constexpr double first_gain = 0.1, next_gain = 0.25;  ///< above 1
constexpr double most_queue = 0.05;                   ///< seconds that a probe adds to the line's queue
constexpr double worth_more = 0.4;  ///< a probe has found more when that part of it was delivered
constexpr double drain_gain = 0.9;
constexpr int between_drains = 4;  ///< windows: others' queues must not push us aside
constexpr int fallen_windows = 3;  ///< in a row
constexpr double fallen = 0.9;
constexpr double slowest = 500'000;  ///< bytes per second: on slower lines TCP itself is good enough

double seconds(RateFollower::Time time) { return std::chrono::duration<double>(time).count(); }

bool is_queued(const RateFollower::Sample& seen) {
  const auto patience = std::max<RateFollower::Time>(20ms, seen.shortest / 5);
  return seen.round_trip > seen.shortest + patience;
}

}  // namespace

void RateFollower::sample(const Sample& seen) {
  const auto least = std::max(shortest_window, seen.shortest);
  was_full_ = was_full_ && seen.full;
  if (!seen.busy) {
    if (in_window_ && seen.now - begin_.now >= least) end_window(seen);
    was_busy_ = in_window_ = false;
    return;
  }
  if (!std::exchange(was_busy_, true)) busy_since_ = seen.now;
  if (!in_window_) {
    // In the first round trip after a pause nothing comes back.
    if (seen.now - busy_since_ < seen.shortest) return;
    in_window_ = true;
  } else if (seen.now - begin_.now >= 2 * least) {
    end_window(seen);
  } else {
    return;
  }
  begin_ = seen;
  was_full_ = seen.full;
}

/// A window in which there was not always something to send says no more than that the line is no slower.
void RateFollower::end_window(const Sample& seen) {
  const double rate = static_cast<double>(seen.delivered - begin_.delivered) / seconds(seen.now - begin_.now);
  const double fast_before = fast_;
  const bool counts = was_full_ || (phase_ == Phase::start && is_queued(seen));
  if (!counts && rate <= fast_) return;
  remember(rate);
  if (!counts) return;
  ++windows_;
  ++since_drain_;
  if (phase_ != Phase::start) return choose_phase(rate, seen);
  if (rate > start_growth * fast_before) windows_ = 0;
  if (windows_ >= 2) enter(Phase::drain);
}

void RateFollower::remember(double rate) {
  recent_.push_back(rate);
  if (recent_.size() > most_recent) recent_.pop_front();
  // Where the line has become slower, what it did before counts no more; a probe shows whether it has.
  if (phase_ == Phase::steady && recent_.size() > fallen_windows) {
    const auto newest = std::max_element(recent_.end() - fallen_windows, recent_.end());
    if (*newest < fallen * fast_) {
      recent_.erase(recent_.begin(), recent_.end() - fallen_windows);
      windows_ = steady_windows;
    }
  }
  auto ordered = std::vector<double>(recent_.begin(), recent_.end());
  std::ranges::sort(ordered, std::greater());
  fast_ = ordered[ordered.size() / 4];
}

void RateFollower::choose_phase(double rate, const Sample& seen) {
  switch (phase_) {
    case Phase::start:
      return;
    case Phase::steady:
      if (is_queued(seen) && since_drain_ > between_drains) return enter(Phase::drain);
      if (windows_ < steady_windows) return;
      before_ = fast_;
      gain_ = 1 + std::min(first_gain, most_queue / seconds(probe_windows * (seen.now - begin_.now)));
      return enter(Phase::probe);
    case Phase::probe:
      if (windows_ < probe_windows) return;
      if (rate <= (1 + worth_more * (gain_ - 1)) * before_) return enter(Phase::drain);
      before_ = rate;
      recent_.push_back(rate);  // it is no burst: it was asked for
      fast_ = rate;
      gain_ = 1 + next_gain;
      windows_ = 0;
      return;
    case Phase::drain:
      enter(Phase::steady);
      if (!std::exchange(has_probed_, true)) windows_ = steady_windows;  // what it began with may be little
      return;
  }
}

void RateFollower::enter(Phase phase) {
  phase_ = phase;
  windows_ = 0;
  if (phase == Phase::drain) since_drain_ = 0;
}

std::uint64_t RateFollower::paced(double gain) const {
  return static_cast<std::uint64_t>(std::max(slowest, gain * fast_));
}

std::uint64_t RateFollower::rate() const {
  switch (phase_) {
    case Phase::start:
      return 0;
    case Phase::probe:
      return paced(gain_);
    case Phase::drain:
      return paced(drain_gain);
    case Phase::steady:
      break;
  }
  return paced(1);
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
