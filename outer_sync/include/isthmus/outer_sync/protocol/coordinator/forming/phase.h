#pragma once
// The phase of the coordinator's view: one value, changed by one function. Each phase has the data that has
// no meaning outside it.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

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

/// Why rounds do not commit.
struct Obstacle {
  enum class Cause : std::uint8_t {
    waits_for_last_view,   ///< a view was about to begin without members of the last one
    too_few,               ///< fewer trainers than the least are here, or can continue
    no_survivor,           ///< no member here has the run's state
    too_few_survivors,     ///< another coordinator may run with the others
    too_few_to_recover,    ///< the same, after --recover
    begins_anew,           ///< no member here has begun the run that an operator recovers
    stuck_in_warmup,       ///< too few have the state, and no other can copy it
    repeats_warmup,        ///< waits for newly started replicas, with which the warm-up begins again
    returns_to_checkpoint  ///< waits for replicas that have a checkpoint in common
  } cause{};
  std::string names{};       ///< the trainers that are missing, or must start again
  std::uint64_t number = 0;  ///< trainers that are here; or step of the checkpoint that they must have
  std::string text{};        ///< for the log and the members

  /// Whether an operator would do the same about both. The text may also name the event that led to it.
  [[nodiscard]] bool is_same_as(const Obstacle& other) const {
    return cause == other.cause && names == other.names && number == other.number;
  }
};

/// There are too few members for a view, or none with the run's state.
struct Suspended {
  Obstacle because;
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
