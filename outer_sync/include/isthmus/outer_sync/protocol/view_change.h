#pragma once
// What a new view begins with: whose rounds are the run's history, which results are decided, who has to take
// the state from others (docs/protocol.md). A pure function of what the members answered to a Seal.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/topology.h"

namespace isthmus::outer_sync::protocol {

struct SealedMember {
  MemberInfo info;
  Sealed sealed;
  std::uint64_t uplink = 0;  ///< bytes per second; 0: not known
};

struct ViewPlan {
  NewView message;       ///< token and number are the caller's to fill in
  std::string topology;  ///< who owns the chunks and why, for people
  struct Evicted {
    std::string name;
    std::string reason;  ///< for people
  };
  std::vector<Evicted> evicted;  ///< not members of the view
};

/// Members must be sorted by name, at least one, and their answers of `layout` (as `received.h` judges
/// them; those of one that only reduces may be empty). A view without members comes out when no trainer can
/// go on with what the run's own know.
[[nodiscard]] ViewPlan plan_view(const FragmentLayout& layout, std::span<const SealedMember> members,
                                 const TopologyRule& topology = {});

/// The layout that somebody names, if it is one and no larger than a run can have: checked before any chunk
/// is listed.
[[nodiscard]] std::optional<FragmentLayout> layout_of(std::span<const Range> fragments,
                                                      std::uint64_t chunk_elements);

/// Whether a ledger from elsewhere is one up to these rounds.
[[nodiscard]] bool ledger_fits(const Ledger& ledger, const std::vector<FragmentState>& fragments);

/// Two of the run's own members with different settings, or different chain hashes at one round, in words;
/// empty if there are none.
[[nodiscard]] std::string disagreement(const FragmentLayout& layout, std::span<const SealedMember> members);

}  // namespace isthmus::outer_sync::protocol
