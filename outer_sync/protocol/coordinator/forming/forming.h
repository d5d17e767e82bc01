#pragma once
// Forms a view from the answers to a Seal: the checkpoint with which the first view begins, the layout, and
// the plan of the view. Pure functions of the members present; Coordinator carries out what they return.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/coordinator/paths/paths.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {

/// Where the first view begins.
struct Beginning {
  std::uint64_t step = 0;                ///< of a checkpoint; 0: from the initial parameters
  std::set<std::string> without{};       ///< trainers without that checkpoint: they join as newcomers
  std::optional<std::string> problem{};  ///< why it cannot begin
};
/// A resumed run begins at `checkpoint_to_begin_from` if it is elastic, otherwise at the newest checkpoint
/// common to all trainers. `goes_back_to`: chosen before, and all trainers have it.
[[nodiscard]] Beginning choose_beginning(const Roster& roster, const CoordinatorOptions& options,
                                         const std::optional<CheckpointId>& goes_back_to);
/// Why a resumed run cannot begin: its trainers have no checkpoint in common.
[[nodiscard]] std::string without_common_checkpoint(const Roster& roster, const CoordinatorOptions& options);
/// Log line of a trainer in `Beginning::without`, and of one without the checkpoint to which a run goes back.
[[nodiscard]] std::string copies_without_checkpoint(const std::string& name, std::uint64_t step);
/// How the trainers of the first view differ; empty: not at all.
[[nodiscard]] std::string initial_disagreement(const Roster& roster);

/// A member that cannot be in the view because of its layout.
struct OtherLayout {
  std::string name, reference;
  bool diverged = false;  ///< both are of the reference: the run cannot continue
};
/// A restarted coordinator learns the layout from the trainers of the highest view that has begun; until then
/// each answer was validated against its own layout. Sets `layout` if it is empty and one is known. Returns
/// the first member that differs.
[[nodiscard]] std::optional<OtherLayout> settle_layout(std::optional<FragmentLayout>& layout,
                                                       const Roster& roster);

/// Members of the reference have different rounds or settings: the run cannot continue.
struct Diverged {
  std::string how;
};
/// A member's links, for the deal of the chunks. If anything is slow, a path may be faster than its uplink
/// was measured to be, because a full path to one member counts as a full uplink.
[[nodiscard]] Site site_of(const MemberStatus& member, const RunPaths::Limits& limits);
/// Plans a view of the members that have answered. It may leave members out, or have none.
[[nodiscard]] std::variant<ViewPlan, Diverged> plan_next_view(const FragmentLayout& layout,
                                                              const Roster& roster, TopologyRule topology,
                                                              const RunPaths::Limits& limits = {});
/// The step that no trainer passes before it has begun the next view.
[[nodiscard]] std::uint64_t reach_of_answers(const Roster& roster);

}  // namespace isthmus::outer_sync::protocol
