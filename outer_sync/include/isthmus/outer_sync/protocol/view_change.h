#pragma once
// What a new view begins with: whose rounds are the run's history, which results are decided, who has to take
// the state from others (docs/protocol.md). A pure function of what the members answered to a Seal.

#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

struct SealedMember {
  MemberInfo info;
  Sealed sealed;
};

struct ViewPlan {
  NewView message;  ///< token and number are the caller's to fill in
  struct Displaced {
    std::string name;
    std::string reason;  ///< for people
  };
  std::vector<Displaced> displaced;  ///< not members of the view
};

/// Members must be sorted by name, at least one, and their answers of `layout` (`answer_fits`). A view
/// without members comes out when none of the run's own can go on.
[[nodiscard]] ViewPlan plan_view(const FragmentLayout& layout, std::span<const SealedMember> members);

/// Whether an answer from the network is one that a member of this layout could give: shapes, no round twice,
/// rounds in order and no more of them than a member keeps.
[[nodiscard]] bool answer_fits(const FragmentLayout& layout, const Sealed& sealed);

/// Two of the run's own members with different chain hashes at one round, in words; empty if there are none.
[[nodiscard]] std::string disagreement(const FragmentLayout& layout, std::span<const SealedMember> members);

}  // namespace isthmus::outer_sync::protocol
