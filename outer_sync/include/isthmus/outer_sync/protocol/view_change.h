#pragma once
// Plans a new view: which rounds are the run's history, which results are decided, and which members are
// evicted (docs/protocol.md). A pure function of the members' answers to a Seal; called by the coordinator.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/views.h"
#include "isthmus/outer_sync/protocol/topology.h"

namespace isthmus::outer_sync::protocol {

struct SealedMember {
  MemberInfo info;
  Sealed sealed;
  std::uint64_t uplink = 0, downlink = 0;  ///< bytes per second; 0: not known
};

struct ViewPlan {
  NewView message;       ///< the caller fills in token and number
  std::string topology;  ///< owners of the chunks and the reason; human-readable
  struct Evicted {
    std::string name;
    std::string reason;  ///< human-readable
  };
  std::vector<Evicted> evicted;  ///< not in the view
};

/// `members`: at least one, sorted by name. Their answers must fit `layout`, as `received.h` checks; those of
/// reducers may be empty. Returns a view without members if no trainer can continue from what the reference's
/// members know.
[[nodiscard]] ViewPlan plan_view(const FragmentLayout& layout, std::span<const SealedMember> members,
                                 const TopologyRule& topology = {});

/// The layout reported by a member, or empty if it is invalid or larger than a run's may be. Checked before
/// any chunk is listed.
[[nodiscard]] std::optional<FragmentLayout> layout_of(std::span<const Range> fragments,
                                                      std::uint64_t chunk_elements);

/// Whether a received ledger is valid and ends at these rounds.
[[nodiscard]] bool ledger_fits(const Ledger& ledger, const std::vector<FragmentState>& fragments);

/// Describes two members of the reference with different settings, or with different chain hashes at one
/// round. Empty if all agree.
[[nodiscard]] std::string disagreement(const FragmentLayout& layout, std::span<const SealedMember> members);

}  // namespace isthmus::outer_sync::protocol
