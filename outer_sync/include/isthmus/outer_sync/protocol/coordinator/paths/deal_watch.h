#pragma once
// Finds out whether the chunks of the view in force should be dealt again, because links have changed for
// long. Owned by Coordinator, which calls it after comparisons of the paths. Pure.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/topology.h"

namespace isthmus::outer_sync::protocol {

class DealWatch {
 public:
  /// Another deal must be this much faster, at this many looks in a row, while this many rounds of every
  /// fragment are applied: without new rounds the measurements are the same ones.
  static constexpr double faster = 1.5;
  static constexpr int looks = 3;
  static constexpr Round rounds = 2;
  /// Comparisons of the paths between two looks.
  static constexpr std::uint64_t look_every = 20;
  /// Least time between the first two deals for this reason; it doubles with each.
  static constexpr Time first_pause = std::chrono::minutes(10);

  /// A view has begun.
  void begin(const View& view) { owners_ = view.owners, wins_ = 0; }
  /// `sites`: the members of the view, in order. `applied`: rounds of every fragment that all members have
  /// applied. Returns the reason if the chunks should be dealt again; the caller then changes the view.
  [[nodiscard]] std::optional<std::string> look(Time now, Round applied, const FragmentLayout& layout,
                                                std::span<const Site> sites, const TopologyRule& rule);

 private:
  std::vector<MemberIndex> owners_;
  int wins_ = 0;
  Round first_win_ = 0;  ///< `applied` at the first of these looks
  std::optional<Time> dealt_at_;
  Time pause_ = first_pause;
};

}  // namespace isthmus::outer_sync::protocol
