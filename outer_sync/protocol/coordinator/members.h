#pragma once
// Helpers shared by the parts of the coordinator's state machine.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {

/// Highest view that has begun at a member, by its reports.
inline ViewNumber begun(const Coordinator::MemberStatus& member) {
  return std::max({member.hello.activated, member.heartbeat.view, member.state.activated});
}

inline bool trains(const Coordinator::MemberStatus& member) { return trains(member.hello.member); }

inline std::size_t trainers_among(const std::vector<MemberInfo>& members) {
  return static_cast<std::size_t>(
      std::ranges::count_if(members, [](const MemberInfo& member) { return trains(member); }));
}

/// Reason given to replicas that want to join while the run is ending.
inline constexpr auto too_late = "the run is ending; there is nothing left to join";

inline constexpr auto stopped_without_state =
    "stopped while no member with the run's state is here; the run can be resumed from its checkpoints";

/// The newest checkpoint in all lists, with the same content; step 0 if they have none in common.
[[nodiscard]] CheckpointId newest_in_all(std::vector<std::vector<CheckpointId>> lists);

/// The checkpoint to which a run returns: the newest one in all lists. Lists of members that were absent when
/// all others had the one of step `complete` do not count; at least `least` lists must. Step 0 if there is
/// none.
[[nodiscard]] CheckpointId checkpoint_to_go_back_to(const std::vector<std::vector<CheckpointId>>& lists,
                                                    std::size_t least, std::uint64_t complete);

template <class Select>
std::size_t Coordinator::count(Select select) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(members_, [&](const auto& entry) { return select(entry.second); }));
}

}  // namespace isthmus::outer_sync::protocol
