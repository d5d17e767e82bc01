#pragma once
// Who owns which chunks of a view. With S the bytes of one full exchange (every chunk once), M members that
// train, R that only reduce, and s_m the part of the chunks that member m owns, it sends
//
//   a trainer   (1 - s_m) S contributions to the other owners and s_m S (M - 1 + R) results
//   a reducer   s_m S (M + R - 1) results
//
// and an exchange takes the time of the slowest uplink. Owners change nothing else: sums are taken in member
// order, and nothing that is encoded depends on who encodes it.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

enum class Topology {
  automatic,  ///< the fastest of the others, as far as that is known
  mesh,       ///< equal shares
  weighted,   ///< shares that even out the time of the uplinks
  hub,        ///< one member owns all
};
inline constexpr std::array<std::string_view, 4> topology_names = {"auto", "mesh", "weighted", "hub"};

/// A member, as far as it matters here.
struct Site {
  std::string name;
  MemberKind kind = MemberKind::trainer;
  std::uint64_t uplink = 0;  ///< bytes per second; 0: not known
};

struct TopologyRule {
  Topology setting = Topology::automatic;
  double bits_per_element = 0;  ///< of an encoded chunk, for times in the reason
};

struct Deal {
  std::vector<MemberIndex> owners;  ///< of each chunk
  std::string reason;               ///< one line for people
};

/// Gives each chunk of a fragment to the member with the fewest elements of that fragment so far, then of
/// all.
[[nodiscard]] std::vector<MemberIndex> balanced_owners(const FragmentLayout& layout, std::size_t members);

/// Shares, with the sum 1, with which the slowest uplink takes the least time. All uplinks must be known.
[[nodiscard]] std::vector<double> balanced_shares(std::span<const Site> sites);

/// Deals chunks one after another to whoever is furthest below its share of those dealt so far; of equals to
/// the first.
[[nodiscard]] std::vector<MemberIndex> owners_by_share(const FragmentLayout& layout,
                                                       std::span<const double> shares);

/// Seconds of one full exchange. All uplinks must be known.
[[nodiscard]] double exchange_seconds(const FragmentLayout& layout, std::span<const Site> sites,
                                      std::span<const MemberIndex> owners, double bits_per_element);

/// `sites` in member order, at least one. `automatic` takes mesh unless another is a tenth shorter; where
/// uplinks are not known it takes mesh, or hub if there is a reducer.
[[nodiscard]] Deal deal_chunks(const FragmentLayout& layout, std::span<const Site> sites,
                               const TopologyRule& rule);

}  // namespace isthmus::outer_sync::protocol
