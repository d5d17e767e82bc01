#include "isthmus/outer_sync/protocol/coordinator/paths/deal_watch.h"

#include <algorithm>
#include <utility>

#include "protocol/short_number.h"

namespace isthmus::outer_sync::protocol {

std::optional<std::string> DealWatch::look(Time now, Round applied, const FragmentLayout& layout,
                                           std::span<const Site> sites, const TopologyRule& rule) {
  if (sites.size() < 3 || owners_.size() != layout.chunk_count())
    return {};  // two members have one path each way
  if (std::ranges::any_of(owners_, [&](MemberIndex owner) { return owner >= sites.size(); })) return {};
  const auto is_known = [](const Site& site) { return site.uplink > 0; };
  const auto deal = deal_chunks(layout, sites, rule);
  const auto present = std::ranges::all_of(sites, is_known)
                           ? exchange_seconds(layout, sites, owners_, rule.bits_per_element, rule.slow)
                           : 0;
  if (present < faster * deal.seconds || present == 0) {
    wins_ = 0;
    return {};
  }
  if (wins_++ == 0) first_win_ = applied;
  if (wins_ < looks || applied < first_win_ + rounds) return {};
  if (dealt_at_ && now - *dealt_at_ < pause_) return {};
  wins_ = 0;
  if (dealt_at_) pause_ *= 2;
  dealt_at_ = now;
  return "links have changed: an exchange takes " + short_number(present) + " s, and " +
         short_number(deal.seconds) + " s with another deal of the chunks";
}

}  // namespace isthmus::outer_sync::protocol
