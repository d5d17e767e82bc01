#pragma once
// When fragments are sent and their results applied: Streaming DiLoCo (arXiv 2501.18512, Algorithm 2). DiLoCo
// is the case P = 1, tau = 0. Every member computes the same schedule from the agreed config alone, so each
// round of a fragment belongs to one step, no matter when members join or leave.

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
  /// tau of the rounds sent in this phase; nullopt: the schedule's `sync_delay`.
  std::optional<std::uint64_t> delay = {};
  friend bool operator==(const SyncPhase&, const SyncPhase&) = default;
};

class Schedule {
 public:
  /// P fragments, each synchronised every H steps; results are applied tau steps later. Steps up to
  /// `warmup_steps` are synchronous and have no send points. Requires P >= 1, H >= 1, tau < H.
  Schedule(FragmentId num_fragments, std::uint64_t sync_every, std::uint64_t sync_delay,
           std::uint64_t warmup_steps)
      : Schedule(num_fragments, std::vector<SyncPhase>{{0, sync_every}}, sync_delay, warmup_steps) {}
  /// Several phases, each with its own H; the first begins at 0, the others follow in ascending order. In
  /// each phase fragment p is first sent offset(p) steps after the phase's beginning (H steps if offset(p) is
  /// 0). A send is skipped unless the fragment's previous result was applied at an earlier step.
  Schedule(FragmentId num_fragments, std::vector<SyncPhase> phases, std::uint64_t sync_delay,
           std::uint64_t warmup_steps);

  /// Steps count from 1. Offset of fragment p in the first phase: floor(p H / P).
  [[nodiscard]] std::uint64_t offset(FragmentId p) const { return offset(p, phases_.front().every); }
  /// H at this step.
  [[nodiscard]] std::uint64_t sync_every(std::uint64_t step) const;
  /// Whether fragment p is sent at this step; with one phase: t = step - warmup_steps >= 1 and (t -
  /// offset(p)) mod H = 0.
  [[nodiscard]] bool sends(FragmentId p, std::uint64_t step) const {
    return step > warmup_steps_ && rounds_sent(p, step) > rounds_sent(p, step - 1);
  }

  /// The newest round of a fragment sent at or before this step. Rounds count from 1; every warm-up step is
  /// one round.
  [[nodiscard]] std::uint64_t rounds_sent(FragmentId p, std::uint64_t step) const;
  /// The newest round applied at or before this step.
  [[nodiscard]] std::uint64_t rounds_due(FragmentId p, std::uint64_t step) const;
  /// The first multiple of `every` >= 1 by which all these rounds (one per fragment) are due. If no later
  /// round is due by then, the global parameters at that step contain exactly these rounds.
  [[nodiscard]] std::uint64_t step_with(const std::vector<std::uint64_t>& rounds, std::uint64_t every) const;
  /// The step at which this round is sent.
  [[nodiscard]] std::uint64_t send_step(FragmentId p, std::uint64_t round) const;
  /// The step at which this round's result is applied.
  [[nodiscard]] std::uint64_t due_step(FragmentId p, std::uint64_t round) const;
  /// The step beyond which no replica can advance without results of rounds sent after `step`. The next
  /// `ahead` rounds after the newest one due at `step` do not count: their results may exist already.
  [[nodiscard]] std::uint64_t reach(std::uint64_t step, std::uint64_t ahead) const;

  /// End of the sync interval that contains the step after `step`: fragment 0 is sent there, or H changes.
  /// Not for warm-up steps.
  [[nodiscard]] std::uint64_t interval_end(std::uint64_t step) const;

  [[nodiscard]] std::uint64_t warmup_steps() const { return warmup_steps_; }

 private:
  /// A fragment's send points in one phase: `count` steps, beginning with `first`, `every` apart.
  struct Points {
    std::uint64_t first, every, count, delay;
  };
  [[nodiscard]] std::uint64_t offset(FragmentId p, std::uint64_t every) const {
    return p * every / num_fragments_;
  }
  /// Visits the send points up to step `last`, phase by phase.
  template <class Visit>
  void visit_points(FragmentId p, std::uint64_t last, const Visit& visit) const;

  FragmentId num_fragments_;
  std::vector<SyncPhase> phases_;  ///< the first phase begins where the warm-up ends
  std::uint64_t sync_delay_, warmup_steps_;
};

}  // namespace isthmus::outer_sync
