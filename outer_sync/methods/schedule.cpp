#include "isthmus/outer_sync/methods/schedule.h"

namespace isthmus::outer_sync {

bool Schedule::sends(FragmentId p, std::uint64_t step) const {
  if (step <= warmup_steps_) return false;
  const auto t = step - warmup_steps_;
  return t >= offset(p) && (t - offset(p)) % sync_every_ == 0;
}

std::vector<FragmentId> Schedule::sends_at(std::uint64_t step) const {
  std::vector<FragmentId> due;
  for (FragmentId p = 0; p < num_fragments_; ++p) {
    if (sends(p, step)) due.push_back(p);
  }
  return due;
}

std::vector<FragmentId> Schedule::applies_at(std::uint64_t step) const {
  return step > sync_delay_ ? sends_at(step - sync_delay_) : std::vector<FragmentId>{};
}

}  // namespace isthmus::outer_sync
