#pragma once
// The phase of the coordinator's view: one value, changed by one function. Each phase has the data that has
// no meaning outside it.

#include <optional>
#include <set>
#include <string>
#include <variant>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

namespace phase {

/// The first view forms. Also after the run has gone back to its checkpoints.
struct Gathering {
  Time since{};                          ///< the join timeout runs from here
  std::optional<Time> all_here_since{};  ///< all planned trainers
  bool sealed = false;                   ///< all members were asked for their state
};

/// A later view forms: members are asked to seal it.
struct Changing {
  Time since{};
};

/// A view is in force.
struct Running {};

/// There are too few members for a view, or none with the run's state.
struct Suspended {
  std::string because;
  std::optional<Time> no_survivor_since{};  ///< since when no member present has the run's state
  std::optional<Time> goes_back_at{};       ///< when it returns to checkpoints without the absent trainers
  std::optional<Time> stuck_since{};  ///< too few have the state, and in the warm-up no other can copy it
  /// Trainers that had to give up their state, so that the warm-up can be repeated; empty: it is not.
  std::set<ReplicaId> sent_back{};
};

/// The run has ended. No other phase follows.
struct Over {};

}  // namespace phase

using Phase = std::variant<phase::Gathering, phase::Changing, phase::Running, phase::Suspended, phase::Over>;

/// Whether `next` may follow `now`.
[[nodiscard]] bool may_follow(const Phase& now, const Phase& next);

/// The only function that changes a phase; requires `may_follow`. A suspension for another reason keeps its
/// times.
void enter(Phase& now, Phase next);

}  // namespace isthmus::outer_sync::protocol
