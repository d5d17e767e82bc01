#include "net/mesh/relay_ways.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using protocol::ReplicaId;

void RelayWays::set(ReplicaId self, const protocol::Relays& relays) {
  carried_.clear();
  std::map<ReplicaId, Way> ways;
  for (const auto& [a, b, by] : relays.relays) {
    if (a == b || by == a || by == b) continue;
    if (by == self) {
      carried_[a].insert(b);
      carried_[b].insert(a);
    }
    if (a != self && b != self) continue;
    const auto other = a == self ? b : a;
    const auto known = ways_.find(other);
    const bool stays = known != ways_.end() && known->second.by == by;
    ways[other] = stays ? known->second : Way{.by = by, .session = ++sessions_};
  }
  ways_ = std::move(ways);
}

bool RelayWays::carries(ReplicaId a, ReplicaId b) const {
  const auto from = carried_.find(a);
  return from != carried_.end() && from->second.contains(b);
}

std::set<ReplicaId> RelayWays::carried_from(ReplicaId from) const {
  const auto place = carried_.find(from);
  return place == carried_.end() ? std::set<ReplicaId>() : place->second;
}

std::size_t RelayWays::over(ReplicaId peer) const {
  return carried_from(peer).size() + peers_by(peer).size();
}

std::optional<ReplicaId> RelayWays::relay_to(ReplicaId peer) const {
  const auto way = ways_.find(peer);
  if (way == ways_.end()) return std::nullopt;
  return way->second.by;
}

bool RelayWays::open(ReplicaId peer) const {
  const auto way = ways_.find(peer);
  return way != ways_.end() && way->second.heard != 0;
}

std::vector<ReplicaId> RelayWays::peers() const {
  std::vector<ReplicaId> peers;
  for (const auto& [peer, way] : ways_) peers.push_back(peer);
  return peers;
}

std::vector<ReplicaId> RelayWays::peers_by(ReplicaId relay) const {
  std::vector<ReplicaId> peers;
  for (const auto& [peer, way] : ways_) {
    if (way.by == relay) peers.push_back(peer);
  }
  return peers;
}

bool RelayWays::hails(ReplicaId peer) const {
  const auto& way = ways_.at(peer);
  return way.heard == 0 || !way.confirmed;
}

Hail RelayWays::hail(ReplicaId peer) const {
  const auto& way = ways_.at(peer);
  return {.session = way.session, .heard = way.heard, .asks = hails(peer)};
}

RelayWays::Heard RelayWays::heard(ReplicaId peer, const Hail& hail) {
  auto& way = ways_.at(peer);
  if (hail.heard == way.session) way.confirmed = true;
  return std::exchange(way.heard, hail.session) == hail.session ? Heard::before : Heard::anew;
}

bool RelayWays::close(ReplicaId peer) {
  const auto way = ways_.find(peer);
  if (way == ways_.end()) return false;
  const bool was_open = way->second.heard != 0;
  way->second = Way{.by = way->second.by, .session = ++sessions_};
  return was_open;
}

}  // namespace isthmus::outer_sync::transport
