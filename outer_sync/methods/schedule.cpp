#include "isthmus/outer_sync/methods/schedule.h"

#include <algorithm>
#include <cassert>

namespace isthmus::outer_sync {

Schedule::Schedule(FragmentId num_fragments, std::vector<SyncPhase> phases, std::uint64_t sync_delay,
                   std::uint64_t warmup_steps, Overlap overlap)
    : num_fragments_(num_fragments),
      phases_(std::move(phases)),
      sync_delay_(sync_delay),
      warmup_steps_(warmup_steps),
      overlap_(overlap) {
  assert(!phases_.empty() && phases_.front().begin == 0);
  // Of the phases that begin in the warm-up the last one holds when it ends.
  while (phases_.size() > 1 && phases_[1].begin <= warmup_steps_) phases_.erase(phases_.begin());
  phases_.front().begin = warmup_steps_;
}

std::uint64_t Schedule::sync_every(std::uint64_t step) const {
  auto every = phases_.front().every;
  for (const auto& phase : phases_) {
    if (step > phase.begin) every = phase.every;
  }
  return every;
}

template <class Visit>
void Schedule::visit_points(FragmentId p, std::uint64_t last, const Visit& visit) const {
  std::optional<std::uint64_t> sent;
  for (std::size_t i = 0; i < phases_.size() && phases_[i].begin < last; ++i) {
    const auto [begin, every] = phases_[i];
    const auto end = i + 1 < phases_.size() ? std::min(last, phases_[i + 1].begin) : last;
    auto first = begin + (offset(p, every) > 0 ? offset(p, every) : every);
    if (sent && first <= *sent + sync_delay_) first += every;
    if (first > end) continue;
    const auto count = (end - first) / every + 1;
    sent = first + (count - 1) * every;
    visit(Points{first, every, count});
  }
}

std::uint64_t Schedule::rounds_sent(FragmentId p, std::uint64_t step) const {
  auto rounds = std::min(step, warmup_steps_);
  visit_points(p, step, [&](const Points& points) { rounds += points.count; });
  return rounds;
}

std::uint64_t Schedule::rounds_due(FragmentId p, std::uint64_t step) const {
  const auto warm = std::min(step, warmup_steps_);
  if (overlap_ == Overlap::whole_round) {
    const auto sent = rounds_sent(p, step);
    return sent > warm ? sent - 1 : warm;
  }
  return step > sync_delay_ ? std::max(warm, rounds_sent(p, step - sync_delay_)) : warm;
}

std::uint64_t Schedule::step_with(const std::vector<std::uint64_t>& rounds, std::uint64_t every) const {
  std::uint64_t step = 0;
  for (FragmentId p = 0; p < rounds.size(); ++p) step = std::max(step, send_step(p, rounds[p]));
  step = (step + every - 1) / every * every;
  const auto due = [&] {
    for (FragmentId p = 0; p < rounds.size(); ++p) {
      if (rounds_due(p, step) < rounds[p]) return false;
    }
    return true;
  };
  while (!due()) step += every;
  return step;
}

std::uint64_t Schedule::send_step(FragmentId p, std::uint64_t round) const {
  if (round <= warmup_steps_) return round;
  auto left = round - warmup_steps_;
  std::uint64_t step = 0;
  visit_points(p, std::numeric_limits<std::uint64_t>::max(), [&](const Points& points) {
    if (left > 0 && left <= points.count) step = points.first + (left - 1) * points.every;
    left -= std::min(left, points.count);
  });
  return step;
}

std::uint64_t Schedule::interval_end(std::uint64_t step) const {
  assert(step >= warmup_steps_);
  std::size_t i = 0;
  while (i + 1 < phases_.size() && phases_[i + 1].begin <= step) ++i;
  const auto [begin, every] = phases_[i];
  const auto end = begin + ((step - begin) / every + 1) * every;
  return i + 1 < phases_.size() ? std::min(end, phases_[i + 1].begin) : end;
}

}  // namespace isthmus::outer_sync
