#pragma once
// When fragments are sent and applied: Streaming DiLoCo (arXiv 2501.18512, Algorithm 2). DiLoCo is P = 1, tau
// = 0. Every member computes the same points from the agreed config alone.

#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/layout.h"

namespace isthmus::outer_sync {

class Schedule {
 public:
  /// P fragments, each synchronised every H steps, results applied tau steps later; steps up to
  /// `warmup_steps` are synchronous and have no points. Requires P >= 1, H >= 1, tau < H.
  Schedule(FragmentId num_fragments, std::uint64_t sync_every, std::uint64_t sync_delay,
           std::uint64_t warmup_steps)
      : num_fragments_(num_fragments),
        sync_every_(sync_every),
        sync_delay_(sync_delay),
        warmup_steps_(warmup_steps) {}

  /// Steps count from 1. Offset of fragment p: floor(p H / P).
  [[nodiscard]] std::uint64_t offset(FragmentId p) const { return p * sync_every_ / num_fragments_; }
  /// t = step - warmup_steps >= 1 and (t - offset(p)) mod H = 0.
  [[nodiscard]] bool sends(FragmentId p, std::uint64_t step) const;
  /// The fragment was sent tau steps ago.
  [[nodiscard]] bool applies(FragmentId p, std::uint64_t step) const {
    return step > sync_delay_ && sends(p, step - sync_delay_);
  }
  [[nodiscard]] std::vector<FragmentId> sends_at(std::uint64_t step) const;
  [[nodiscard]] std::vector<FragmentId> applies_at(std::uint64_t step) const;
  [[nodiscard]] std::uint64_t sync_delay() const { return sync_delay_; }
  [[nodiscard]] std::uint64_t warmup_steps() const { return warmup_steps_; }

 private:
  FragmentId num_fragments_;
  std::uint64_t sync_every_, sync_delay_, warmup_steps_;
};

}  // namespace isthmus::outer_sync
