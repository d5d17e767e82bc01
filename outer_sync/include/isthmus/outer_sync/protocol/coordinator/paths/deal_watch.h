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
  /// Another deal must be this much faster, at this many looks in a row.
  static constexpr double faster = 1.5;
  static constexpr int looks = 3;
  /// Comparisons of the paths between two looks.
  static constexpr std::uint64_t look_every = 20;
  /// Least time between two deals for this reason.
  static constexpr Time pause = std::chrono::minutes(10);

  /// A view has begun.
  void begin(const View& view) { owners_ = view.owners, wins_ = 0; }
  /// `sites`: the members of the view, in order. Returns the reason if the chunks should be dealt again; the
  /// caller then changes the view.
  [[nodiscard]] std::optional<std::string> look(Time now, const FragmentLayout& layout,
                                                std::span<const Site> sites, const TopologyRule& rule);

 private:
  std::vector<MemberIndex> owners_;
  int wins_ = 0;
  std::optional<Time> dealt_at_;
};

}  // namespace isthmus::outer_sync::protocol
