#include "isthmus/outer_sync/core/schedule.h"

#include <algorithm>
#include <cassert>

namespace isthmus::outer_sync {

Schedule::Schedule(FragmentId num_fragments, std::vector<SyncPhase> phases, std::uint64_t sync_delay,
                   std::uint64_t warmup_steps)
    : num_fragments_(num_fragments),
      phases_(std::move(phases)),
      sync_delay_(sync_delay),
      warmup_steps_(warmup_steps) {
  assert(!phases_.empty() && phases_.front().begin == 0);
  // Of several phases that begin during the warm-up, only the last one has an effect, from the warm-up's end
  // on.
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
  std::optional<std::uint64_t> applied;  // step at which the newest round sent so far is applied
  for (std::size_t i = 0; i < phases_.size() && phases_[i].begin < last; ++i) {
    const auto begin = phases_[i].begin, every = phases_[i].every;
    const auto delay = phases_[i].delay.value_or(sync_delay_);
    const auto end = i + 1 < phases_.size() ? std::min(last, phases_[i + 1].begin) : last;
    auto first = begin + (offset(p, every) > 0 ? offset(p, every) : every);
    while (applied && first <= *applied) first += every;
    if (first > end) continue;
    const auto count = (end - first) / every + 1;
    applied = first + (count - 1) * every + delay;
    visit(Points{first, every, count, delay});
  }
}

std::uint64_t Schedule::rounds_sent(FragmentId p, std::uint64_t step) const {
  auto rounds = std::min(step, warmup_steps_);
  visit_points(p, step, [&](const Points& points) { rounds += points.count; });
  return rounds;
}

std::uint64_t Schedule::rounds_due(FragmentId p, std::uint64_t step) const {
  auto rounds = std::min(step, warmup_steps_);
  visit_points(p, step, [&](const Points& points) {
    if (points.first + points.delay > step) return;
    rounds += std::min(points.count, (step - points.delay - points.first) / points.every + 1);
  });
  return rounds;
}

std::uint64_t Schedule::due_step(FragmentId p, std::uint64_t round) const {
  if (round <= warmup_steps_) return round;
  const auto sent = send_step(p, round);
  auto delay = sync_delay_;
  for (const auto& phase : phases_) {
    if (phase.begin < sent) delay = phase.delay.value_or(sync_delay_);
  }
  return sent + delay;
}

std::uint64_t Schedule::reach(std::uint64_t step, std::uint64_t ahead) const {
  auto reach = std::numeric_limits<std::uint64_t>::max();
  for (FragmentId p = 0; p < num_fragments_; ++p)
    reach = std::min(reach, due_step(p, std::max(rounds_sent(p, step), rounds_due(p, step) + ahead) + 1));
  return reach;
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
  const auto begin = phases_[i].begin, every = phases_[i].every;
  const auto end = begin + ((step - begin) / every + 1) * every;
  return i + 1 < phases_.size() ? std::min(end, phases_[i + 1].begin) : end;
}

}  // namespace isthmus::outer_sync
