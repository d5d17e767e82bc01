#pragma once
// What the parts of the coordinator's state machine ask of its members alike.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {

/// Highest view that has begun at a member, as far as it has said.
inline ViewNumber begun(const Coordinator::MemberStatus& member) {
  return std::max({member.hello.activated, member.heartbeat.view, member.state.activated});
}

inline bool trains(const Coordinator::MemberStatus& member) { return trains(member.hello.member); }

inline std::size_t trainers_among(const std::vector<MemberInfo>& members) {
  return static_cast<std::size_t>(
      std::ranges::count_if(members, [](const MemberInfo& member) { return trains(member); }));
}

/// Why nobody is admitted any more, and what those who wait are told.
inline constexpr auto too_late = "the run is ending; there is nothing left to join";

inline constexpr auto stopped_without_state =
    "stopped while nobody who has the run's state is here: it can be resumed from its checkpoints";

/// The newest that is in all lists, with the same content; of step 0 where there is none.
[[nodiscard]] CheckpointId newest_in_all(std::vector<std::vector<CheckpointId>> lists);

/// Where a run goes back to: the newest checkpoint that all of these have, but for those who were away when
/// all others had that of step `complete`; at least so many must have it. Of step 0 where there is none.
[[nodiscard]] CheckpointId checkpoint_to_go_back_to(const std::vector<std::vector<CheckpointId>>& lists,
                                                    std::size_t least, std::uint64_t complete);

template <class Select>
std::size_t Coordinator::count(Select select) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(members_, [&](const auto& entry) { return select(entry.second); }));
}

}  // namespace isthmus::outer_sync::protocol
