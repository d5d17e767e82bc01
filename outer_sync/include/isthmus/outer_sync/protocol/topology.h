#pragma once
// Assigns the chunks of a view to owners. With S bytes in one full exchange (every chunk once), M trainers, R
// reducers, and s_m the share of the chunks that member m owns, it sends
//
//   a trainer   (1 - s_m) S contributions to the other owners and s_m S (M - 1 + R) results
//   a reducer   s_m S (M + R - 1) results
//
// and an exchange takes as long as the slowest uplink. Where links into a member or single paths are known to
// be slower than that, an exchange also takes as long as these: a trainer i sends (s_j + s_i) S to member j,
// a reducer s_i S. Owners affect speed only: sums are taken in member order, and encoded bytes do not depend
// on the member that encodes them.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

enum class Topology {
  automatic,  ///< the fastest of the others, if the uplinks are known
  mesh,       ///< equal shares
  weighted,   ///< shares that equalise the times of the uplinks
  hub,        ///< one member owns all chunks
};
inline constexpr std::array<std::string_view, 4> topology_names = {"auto", "mesh", "weighted", "hub"};

/// A member, as far as topology depends on it.
struct Site {
  std::string name;
  MemberKind kind = MemberKind::trainer;
  std::uint64_t uplink = 0;    ///< bytes per second; 0: not known
  std::uint64_t downlink = 0;  ///< bytes per second; 0: no limit is known
};

/// A path that is slower than the links at its ends, between sites of these names.
struct SlowPath {
  std::string from, to;
  std::uint64_t bytes_per_second = 0;
  friend bool operator==(const SlowPath&, const SlowPath&) = default;
};

struct TopologyRule {
  Topology setting = Topology::automatic;
  double bits_per_element = 0;  ///< of an encoded chunk; used for the times in the reason
  std::vector<SlowPath> slow{};
};

struct Deal {
  std::vector<MemberIndex> owners;  ///< of each chunk
  std::string reason;               ///< one human-readable line
  double seconds = 0;               ///< of one full exchange; 0: not known
};

/// Gives each chunk of a fragment to the member with the fewest elements of that fragment so far, of equals
/// to the one with the fewest elements overall.
[[nodiscard]] std::vector<MemberIndex> balanced_owners(const FragmentLayout& layout, std::size_t members);

/// Shares with the sum 1 that minimise the time of the slowest uplink, downlink or path; to a 512th of the
/// whole if any but uplinks are limited. All uplinks must be known.
[[nodiscard]] std::vector<double> balanced_shares(std::span<const Site> sites,
                                                  std::span<const SlowPath> slow = {});

/// Gives each chunk in turn to the member furthest below its share of the chunks so far; of equals, to the
/// first.
[[nodiscard]] std::vector<MemberIndex> owners_by_share(const FragmentLayout& layout,
                                                       std::span<const double> shares);

/// Seconds of one full exchange. All uplinks must be known.
[[nodiscard]] double exchange_seconds(const FragmentLayout& layout, std::span<const Site> sites,
                                      std::span<const MemberIndex> owners, double bits_per_element,
                                      std::span<const SlowPath> slow = {});

/// `sites`: at least one, in member order. `automatic` chooses mesh unless another topology is a tenth
/// faster. If uplinks are not known it chooses mesh, or hub if there is a reducer.
[[nodiscard]] Deal deal_chunks(const FragmentLayout& layout, std::span<const Site> sites,
                               const TopologyRule& rule);

}  // namespace isthmus::outer_sync::protocol
