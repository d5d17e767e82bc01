#pragma once
// The fate of the trainers of the view announced last. Only these may know the run's newest rounds, so
// they decide whether a view can continue the run, or whether it goes back to its checkpoints
// (docs/protocol.md, Too few trainers and Lost state). Pure functions of the members present.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/forming/phase.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"

namespace isthmus::outer_sync::protocol {

inline constexpr auto reason_to_start_again =
    "all members with the run's state are gone; start again, with --resume";
inline constexpr auto stopped_without_state =
    "stopped while no member with the run's state is here; the run can be resumed from its checkpoints";

/// Trainers that said goodbye, and trainers that were ordered to give up their state.
struct Gone {
  std::set<ReplicaId> left, sent_back;
};

/// The trainers of a view, counted by their fate.
struct LastTrainers {
  std::size_t in_view = 0, with_state = 0, without_state = 0, offering = 0, left = 0;

  [[nodiscard]] bool all_left() const { return in_view > 0 && left == in_view; }
  /// Trainers that do not have the run's state any more.
  [[nodiscard]] std::size_t gone() const { return without_state + left; }
  /// No trainer of the view has its rounds any more; or at least half of them have lost these, and the others
  /// are given up.
  [[nodiscard]] bool state_is_lost(bool others_are_given_up) const;
};

/// Just started, and ready to begin from a checkpoint; when the warm-up is repeated, also from the beginning.
[[nodiscard]] bool offers_checkpoints(const MemberStatus& member, bool repeats_warmup);
[[nodiscard]] LastTrainers count_last_trainers(const LastView& view, const Roster& roster, const Gone& gone);
/// A trainer of the view is here: then rounds that only these trainers know are not lost.
[[nodiscard]] bool has_survivor(const LastView& view, const Roster& roster);
/// The first view of `planned` trainers was announced and has begun at no member: all its trainers are here,
/// without a view.
[[nodiscard]] bool has_begun_nowhere(const LastView& view, const Roster& roster, std::size_t planned);
/// All members of the view are here, or have left.
[[nodiscard]] bool all_are_here(const LastView& view, const Roster& roster, const std::set<ReplicaId>& left);
/// Two coordinators that do not know of each other must not both form views. So this one needs half of the
/// trainers that may have the run's state, or `least` if that is fewer. Newcomers that it admits do not
/// count; a trainer that came back without the state has lost it, and one of `left` has ended. Returns the
/// missing names, separated by commas; empty if enough trainers are here.
[[nodiscard]] std::string missing_survivors(const LastView& view, const Roster& roster,
                                            const std::set<ReplicaId>& left, std::size_t least);
/// Two coordinators that do not know of each other must not both continue with a part of one view. So a
/// recovery needs more than half of the view's trainers, or half of them and the previous coordinator's
/// memory. Returns the reason against it.
[[nodiscard]] std::optional<phase::Obstacle> reason_not_to_recover(const CoordinatorOptions& options,
                                                                   const Roster& roster);
[[nodiscard]] phase::Obstacle reason_without_survivor(const CoordinatorOptions& options,
                                                      std::uint64_t complete);
/// In the warm-up the state cannot be copied. Whether too few trainers with the state are here for a round
/// during the warm-up, others wait that could train with them, and at most half of the view's trainers may
/// be elsewhere.
[[nodiscard]] bool are_stuck_in_warmup(const LastTrainers& last, const Roster& roster, std::size_t least,
                                       Round warmup_rounds);

/// The chances of a suspended run: whether its state is lost, and to which checkpoint it can go back.
class Outlook {
 public:
  /// `suspended`: null in other phases. `complete`: step of the newest checkpoint that all had. `left`:
  /// trainers of the last view that said goodbye. All must outlive this.
  Outlook(const CoordinatorOptions& options, const Roster& roster, const phase::Suspended* suspended,
          const std::set<ReplicaId>& left, std::uint64_t complete, Time now);
  [[nodiscard]] const LastTrainers& last() const { return last_; }
  [[nodiscard]] bool repeats_warmup() const {
    return suspended_ != nullptr && !suspended_->sent_back.empty();
  }
  [[nodiscard]] bool state_is_lost() const;
  /// The newest checkpoint from which the present trainers could begin; step 0: none, or the beginning.
  [[nodiscard]] CheckpointId newest_offered() const;
  /// Whether as many trainers as planned can begin at a checkpoint, or, after a wait, enough.
  [[nodiscard]] bool may_go_back() const;
  /// All absent trainers have lost the state, and some of them have left: no one to wait for.
  [[nodiscard]] bool nobody_returns() const;
  /// Why the run may not go back yet.
  [[nodiscard]] phase::Obstacle reason_to_wait() const;

 private:
  [[nodiscard]] bool others_are_given_up() const;
  [[nodiscard]] bool has_waited_for_survivors() const;

  const CoordinatorOptions& options_;
  const Roster& roster_;
  const phase::Suspended* suspended_;
  std::uint64_t complete_;
  Time now_;
  LastTrainers last_;
};

/// The newest checkpoint in all lists, with the same content; step 0 if they have none in common.
[[nodiscard]] CheckpointId newest_in_all(std::vector<std::vector<CheckpointId>> lists);
/// The checkpoint from which an elastic run resumes: the newest one in all lists that are not empty. Trainers
/// of a view have one in common, so without any, some were absent while the others trained: then the newest
/// of those in the most lists, at least `least`. Step 0 without any, or if the newest has two contents.
[[nodiscard]] CheckpointId checkpoint_to_begin_from(const std::vector<std::vector<CheckpointId>>& lists,
                                                    std::size_t least);
/// The checkpoint to which a run returns: the newest one in all lists. Lists of members that were absent when
/// all others had the one of step `complete` do not count; at least `least` lists must. Step 0 if there is
/// none.
[[nodiscard]] CheckpointId checkpoint_to_go_back_to(const std::vector<std::vector<CheckpointId>>& lists,
                                                    std::size_t least, std::uint64_t complete);

}  // namespace isthmus::outer_sync::protocol
