#pragma once
// When fragments are sent and applied: Streaming DiLoCo (arXiv 2501.18512, Algorithm 2). DiLoCo is P = 1, tau
// = 0. Every member computes the same points from the agreed config alone, so that a round of a fragment
// belongs to one step, whoever was there when.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::outer_sync {

/// From the step after `begin` on, a fragment is synchronised every `every` steps.
struct SyncPhase {
  std::uint64_t begin = 0;
  std::uint64_t every = 1;
  /// tau of the rounds that are sent in it; without one the schedule's.
  std::optional<std::uint64_t> delay = {};
  friend bool operator==(const SyncPhase&, const SyncPhase&) = default;
};

/// When a round's result is applied.
enum class Overlap {
  delay,        ///< tau steps after it was sent
  whole_round,  ///< where its fragment is sent next, after that: communication has a whole round's time
};

class Schedule {
 public:
  /// P fragments, each synchronised every H steps, results applied tau steps later; steps up to
  /// `warmup_steps` are synchronous and have no points. Requires P >= 1, H >= 1, tau < H.
  Schedule(FragmentId num_fragments, std::uint64_t sync_every, std::uint64_t sync_delay,
           std::uint64_t warmup_steps)
      : Schedule(num_fragments, std::vector<SyncPhase>{{0, sync_every}}, sync_delay, warmup_steps) {}
  /// With an H of each phase; phases ascend from 0. Each begins like the first one: fragment p is sent
  /// offset(p) steps after its beginning (H steps, where that is 0). A send that would come before the result
  /// of the fragment's last one is applied is left out.
  Schedule(FragmentId num_fragments, std::vector<SyncPhase> phases, std::uint64_t sync_delay,
           std::uint64_t warmup_steps, Overlap overlap = Overlap::delay);

  /// Steps count from 1. Offset of fragment p in the first phase: floor(p H / P).
  [[nodiscard]] std::uint64_t offset(FragmentId p) const { return offset(p, phases_.front().every); }
  /// H at that step.
  [[nodiscard]] std::uint64_t sync_every(std::uint64_t step) const;
  /// With one phase: t = step - warmup_steps >= 1 and (t - offset(p)) mod H = 0.
  [[nodiscard]] bool sends(FragmentId p, std::uint64_t step) const {
    return step > warmup_steps_ && rounds_sent(p, step) > rounds_sent(p, step - 1);
  }

  /// The newest round of a fragment that is sent at or before that step: rounds count from 1, and every step
  /// of the warm-up is one.
  [[nodiscard]] std::uint64_t rounds_sent(FragmentId p, std::uint64_t step) const;
  /// The newest round whose result is applied at or before that step.
  [[nodiscard]] std::uint64_t rounds_due(FragmentId p, std::uint64_t step) const;
  /// The first step, of those that are multiples of `every` >= 1, by which all these rounds (by fragment) are
  /// due: if no more are, it is a step at which the global parameters are those of just these rounds.
  [[nodiscard]] std::uint64_t step_with(const std::vector<std::uint64_t>& rounds, std::uint64_t every) const;
  /// At which step that round is sent.
  [[nodiscard]] std::uint64_t send_step(FragmentId p, std::uint64_t round) const;
  /// At which step its result is applied.
  [[nodiscard]] std::uint64_t due_step(FragmentId p, std::uint64_t round) const;
  /// The first step at which the result of a round is due that is sent after `step`, and is one of those
  /// more than `ahead` rounds after what is applied by then: nobody for whom such results do not come gets
  /// further.
  [[nodiscard]] std::uint64_t reach(std::uint64_t step, std::uint64_t ahead) const;

  /// Where the sync interval ends that the step after `step` is in: fragment 0 is sent there, or H changes.
  /// Not in the warm-up.
  [[nodiscard]] std::uint64_t interval_end(std::uint64_t step) const;

  [[nodiscard]] std::uint64_t warmup_steps() const { return warmup_steps_; }

 private:
  /// A fragment's send points in one phase: `count` steps from `first` on, `every` apart.
  struct Points {
    std::uint64_t first, every, count, delay;
  };
  [[nodiscard]] std::uint64_t offset(FragmentId p, std::uint64_t every) const {
    return p * every / num_fragments_;
  }
  /// Those up to step `last`, phase by phase.
  template <class Visit>
  void visit_points(FragmentId p, std::uint64_t last, const Visit& visit) const;

  FragmentId num_fragments_;
  std::vector<SyncPhase> phases_;  ///< the first begins where the warm-up ends
  std::uint64_t sync_delay_, warmup_steps_;
  Overlap overlap_;
};

}  // namespace isthmus::outer_sync
