// The connections between the processes: links, lanes, relays.

#include "world.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

// ---- links and lanes ----

World::LinkPtr World::connect(NodeId a, NodeId b) {
  auto link = std::make_shared<Link>();
  link->a = a;
  link->b = b;
  std::erase_if(links_, [](const auto& weak) { return weak.expired(); });
  links_.push_back(link);
  return link;
}

/// A cut connection stalls, as with TCP; a broken connection loses its messages from some moment on.
void World::transmit(const LinkPtr& link, NodeId from, std::function<void()> arrive) {
  if (!link || !link->open) return;
  const int way = link->a == from ? 0 : 1;
  const auto to = way == 0 ? link->b : link->a;
  if (cut(from, to) || !link->stalled[way].empty()) {
    link->stalled[way].push_back(std::move(arrive));
    return;
  }
  const auto arrival = std::max(now_ + 1ms + some(latency_), link->last_arrival[way] + Time(1));
  link->last_arrival[way] = arrival;
  at(arrival - now_, [this, link, way, from, to, arrive = std::move(arrive)] {
    if (now_ > link->survives_until) return count("message lost in a break");
    if (cut(from, to)) {
      link->stalled[way].push_back(arrive);
      return;
    }
    if (to >= members_) return arrive();
    auto& process = processes_[to];
    if (!process.alive) return break_link(link);  // no process listens there any more
    if (process.stopped) {
      process.backlog.push_back([life = process.life, &process, arrive] {
        if (process.life == life) arrive();
      });
    } else {
      arrive();
    }
  });
}

void World::break_link(const LinkPtr& link) {
  if (!link || !link->open) return;
  link->open = false;
  link->survives_until = now_ + some(latency_);
  for (const auto end : {link->a, link->b}) {
    const auto other = end == link->a ? link->b : link->a;
    const auto notice = cut(other, end) ? detect_timeout : link->survives_until - now_ + Time(1);
    if (end >= members_) {
      at(notice, [this, link, end] { closed(link, end); });
    } else if (processes_[end].alive) {
      in(processes_[end], notice, [this, link, end] { closed(link, end); });
    }
  }
}

void World::closed(const LinkPtr& link, NodeId end) {
  if (end >= members_) {
    for (auto at = control_.begin(); at != control_.end(); ++at) {
      if (at->second.first != link) continue;
      const auto id = at->first;
      control_.erase(at);
      if (coordinator_) coordinator_->closed(id);
      act_coordinator();
      return;
    }
    return;
  }
  auto& process = processes_[end];
  if (process.control == link) {
    process.control = nullptr;
    in(process, some(redial_after), [this, end] { dial_coordinator(end); });
  }
  for (FragmentId p = 0; p < process.sources.size(); ++p) {
    if (process.sources[p] == link && process.learning)
      in(process, some(redial_after), [this, &process, p] { ask_for_state(process, p); });
  }
}

World::LinkPtr& World::lane(NodeId a, NodeId b, ChunkId chunk) {
  return lanes_up_[{std::min(a, b), std::max(a, b), chunk % lanes_}];
}

void World::dial_peer(NodeId a, NodeId b, std::size_t lane_index) {
  auto& link = lanes_up_[{a, b, lane_index}];
  const bool possible = processes_[a].alive && processes_[b].alive && !processes_[a].stopped &&
                        !processes_[b].stopped && !cut(a, b) && !cut(b, a) &&
                        !lanes_down_.contains({a, lane_index}) && !lanes_down_.contains({b, lane_index});
  if (possible && (!link || !link->open)) {
    link = connect(a, b);
    for (const auto& [own, other] : {std::pair{a, b}, std::pair{b, a}}) {
      auto& process = processes_[own];
      process.down_since.erase(other);
      const auto peer = index_of(process, other);
      if (!peer) continue;
      const auto of_lane = [&](const ChunkKey& key) { return key.chunk % lanes_ == lane_index; };
      process.member->repeat_to(*peer, of_lane);
      if (process.exchanges) process.exchanges->repeat_to(*peer, of_lane);
      act(own);
    }
    // If one of its two hops has lost messages, the relayed way has lost them too.
    std::erase_if(open_ways_, [&](const auto& pair) {
      const auto by = relay_told(pair.first, pair.first, pair.second);
      return by == a || by == b;
    });
    repeat_by_relays();
  }
  at(20ms + some(redial_after), [this, a, b, lane_index] { dial_peer(a, b, lane_index); });
}

// ---- relays ----

bool World::connected(NodeId a, NodeId b) {
  for (std::size_t l = 0; l < lanes_; ++l) {
    const auto& link = lane(a, b, static_cast<ChunkId>(l));
    if (link && link->open) return true;
  }
  return false;
}

/// The relay between these two, according to the announcement that member `m` has.
std::optional<World::NodeId> World::relay_told(NodeId m, NodeId a, NodeId b) const {
  const auto one = processes_[a].replica, other = processes_[b].replica;
  for (const auto& relay : processes_[m].relays.relays) {
    const bool is_theirs = (relay.a == one && relay.b == other) || (relay.a == other && relay.b == one);
    const auto by = node_of_.find(relay.by);
    if (!is_theirs || by == node_of_.end() || processes_[by->second].replica != relay.by) continue;
    return by->second;
  }
  return std::nullopt;
}

/// The result of the transport's handshake: all three know the relay, and it has lanes to both.
bool World::way_is_open(NodeId a, NodeId b) {
  const auto by = relay_told(a, a, b);
  if (!by || relay_told(b, a, b) != by || relay_told(*by, a, b) != by) return false;
  return connected(a, *by) && connected(*by, b);
}

/// Sends over a lane, or over two by way of the relay, which drops what it cannot pass on.
void World::send_bulk(NodeId from, NodeId to, std::size_t lane_index, std::function<void()> arrive) {
  const auto at = [this, lane_index](NodeId a, NodeId b) -> LinkPtr {
    for (std::size_t l = 0; l < lanes_; ++l) {  // the same lane, or another that is up
      const auto& link = lane(a, b, static_cast<ChunkId>(lane_index + l));
      if (link && link->open) return link;
    }
    return nullptr;
  };
  if (connected(from, to))
    return transmit(lane(from, to, static_cast<ChunkId>(lane_index)), from, std::move(arrive));
  if (!way_is_open(from, to)) return;
  const auto by = *relay_told(from, from, to);
  transmit(at(from, by), from, [this, from, to, by, at, arrive = std::move(arrive)] {
    if (relay_told(by, from, to) != by || !connected(by, to)) return count("lost at a relay");
    transmit(at(by, to), by, [this, from, to, by, arrive] {
      if (relay_told(to, from, to) != by) return count("lost behind a relay");
      count("carried by a relay");
      arrive();
    });
  });
}

void World::on_relays(NodeId m, const Relays& relays) {
  processes_[m].relays = relays;
  repeat_by_relays();
}

/// When a relayed way opens, both ends repeat what may have been lost; also after one of several lanes has
/// broken.
void World::repeat_by_relays() {
  std::set<std::pair<NodeId, NodeId>> open;
  for (NodeId a = 0; a < members_; ++a) {
    for (NodeId b = a + 1; b < members_; ++b) {
      if (processes_[a].alive && processes_[b].alive && !connected(a, b) && way_is_open(a, b))
        open.insert({a, b});
    }
  }
  const auto before = std::exchange(open_ways_, open);
  for (const auto& [a, b] : open) {
    if (before.contains({a, b})) continue;
    tell("member " + std::to_string(a) + " and member " + std::to_string(b) +
         " reach each other through a relay");
    for (const auto& [own, other] : {std::pair{a, b}, std::pair{b, a}}) {
      const auto peer = index_of(processes_[own], other);
      if (!peer) continue;
      const auto all = [](const ChunkKey&) { return true; };
      processes_[own].member->repeat_to(*peer, all);
      if (processes_[own].exchanges) processes_[own].exchanges->repeat_to(*peer, all);
      act(own);
    }
  }
}

void World::dial_coordinator(NodeId m) {
  auto& process = processes_[m];
  if (process.control && process.control->open) return;
  if (!coordinator_ || cut(m, members_) || cut(members_, m)) {
    in(process, redial_after, [this, m] { dial_coordinator(m); });
    return;
  }
  process.control = connect(m, members_);
  process.connection = next_connection_++;
  process.heard = now_;
  process.beat_times.clear();
  control_[process.connection] = {process.control, m};
  say_hello(process);
}

}  // namespace isthmus::outer_sync::protocol
