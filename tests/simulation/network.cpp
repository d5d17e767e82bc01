// What connects the processes, and what goes wrong with it and them.

#include "world.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

// ---- the network ----

World::LinkPtr World::connect(NodeId a, NodeId b) {
  auto link = std::make_shared<Link>();
  link->a = a;
  link->b = b;
  std::erase_if(links_, [](const auto& weak) { return weak.expired(); });
  links_.push_back(link);
  return link;
}

/// What is cut stalls, as TCP does; what is broken is lost from some moment on.
void World::transmit(const LinkPtr& link, NodeId from, std::function<void()> arrive) {
  if (!link || !link->open) return;
  const int way = link->a == from ? 0 : 1;
  const auto to = way == 0 ? link->b : link->a;
  if (cut(from, to) || !link->stalled[way].empty()) {
    link->stalled[way].push_back(std::move(arrive));
    return;
  }
  const auto arrival = std::max(now_ + 1ms + some(longest_delay), link->last_arrival[way] + Time(1));
  link->last_arrival[way] = arrival;
  at(arrival - now_, [this, link, way, from, to, arrive = std::move(arrive)] {
    if (now_ > link->survives_until) return count("message lost in a break");
    if (cut(from, to)) {
      link->stalled[way].push_back(arrive);
      return;
    }
    if (to >= members_) return arrive();
    auto& process = processes_[to];
    if (!process.alive) return break_link(link);  // nobody listens there any more
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
  link->survives_until = now_ + some(longest_delay);
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

void World::heal() {
  tell("all faults end");
  cuts_.clear();
  const auto flush = [this](const LinkPtr& link) {
    if (!link) return;
    for (const int way : {0, 1}) {
      for (auto& message : std::exchange(link->stalled[way], {}))
        transmit(link, way == 0 ? link->a : link->b, std::move(message));
    }
  };
  for (const auto& weak : std::vector(links_)) flush(weak.lock());
  if (now_ < calm_from_) return;
  for (NodeId m = 0; m < members_; ++m) {
    auto& process = processes_[m];
    process.slowness = 1;
    if (process.stopped) {
      process.stopped = false;
      for (auto& event : std::exchange(process.backlog, {})) event();
    }
    if (!process.alive) start(m);
  }
  if (!coordinator_) start_coordinator(disk_was_lost_);
  at(3s, [this] { recover_if_the_heirs_are_gone(); });
  at(calm_time / 2, [this] {
    calm_rounds_.assign(layout_.fragment_count(), 0);
    for (auto& process : processes_) {
      for (FragmentId p = 0; process.member && p < layout_.fragment_count(); ++p)
        calm_rounds_[p] = std::max(calm_rounds_[p], process.member->fragments()[p].round);
    }
  });
}

World::LinkPtr& World::lane(NodeId a, NodeId b, ChunkId chunk) {
  return lanes_up_[{std::min(a, b), std::max(a, b), chunk % lanes_}];
}

void World::dial_peer(NodeId a, NodeId b, std::size_t lane_index) {
  auto& link = lanes_up_[{a, b, lane_index}];
  const bool possible = processes_[a].alive && processes_[b].alive && !processes_[a].stopped &&
                        !processes_[b].stopped && !cut(a, b) && !cut(b, a);
  if (possible && (!link || !link->open)) {
    link = connect(a, b);
    for (const auto& [own, other] : {std::pair{a, b}, std::pair{b, a}}) {
      auto& process = processes_[own];
      process.down_since.erase(other);
      const auto peer = index_of(process, other);
      if (!peer) continue;
      process.member->repeat_to(*peer, [&](const ChunkKey& key) { return key.chunk % lanes_ == lane_index; });
      act(own);
    }
  }
  at(20ms + some(redial_after), [this, a, b, lane_index] { dial_peer(a, b, lane_index); });
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

// ---- faults ----

/// Somebody must stay who knows the run's rounds: else it goes on from a checkpoint, not from here.
bool World::may_crash(NodeId m) const {
  ViewNumber highest = 0;
  for (const auto& process : processes_) {
    if (process.alive && process.member && process.in_run)
      highest = std::max(highest, process.member->view().number);
  }
  if (disk_) highest = std::max(highest, disk_->number);
  std::size_t heirs = 0;
  for (NodeId other = 0; other < members_; ++other) {
    const auto& process = processes_[other];
    if (other == m || !process.alive || !process.member || !process.in_run) continue;
    const bool listed = !disk_ || std::ranges::any_of(disk_->members, [&](const MemberInfo& info) {
      return id_of(info) == process.replica;
    });
    const bool current = process.member->view().number > 0 && process.member->sealed() + 1 >= highest;
    heirs += listed && current ? 1 : 0;
  }
  return heirs > 0;
}

void World::disturb() {
  const auto m = chance(members_);
  auto& process = processes_[m];
  const auto other = chance(members_ + 1);
  const auto back_after = some(3s);
  switch (chance(10)) {
    case 0:
    case 1:
      if (!process.alive || (!may_crash(m) && chance(8) != 0)) return;
      crash(m);
      at(chance(3) == 0 ? some(20ms) : back_after, [this, m] {
        count("member restart");
        start(m);
      });
      return;
    case 2:
      if (!process.alive || process.stopped) return;
      tell("member " + std::to_string(m) + " stands still");
      count("member stopped and continued");
      process.stopped = true;
      in(process, Time(1), [] {});
      at(back_after, [this, m, life = process.life] {
        auto& stopped = processes_[m];
        if (stopped.life != life || !stopped.stopped) return;
        tell("member " + std::to_string(m) + " goes on");
        stopped.stopped = false;
        for (auto& event : std::exchange(stopped.backlog, {})) event();
      });
      return;
    case 3:
      if (other == m) return;
      tell("cut from " + std::to_string(m) + " to " + std::to_string(other));
      count("one-way cut");
      cuts_.insert({m, other});
      break;
    case 4:
      if (other == m) return;
      tell("cut between " + std::to_string(m) + " and " + std::to_string(other));
      count("cut");
      cuts_.insert({m, other});
      cuts_.insert({other, m});
      break;
    case 5: {
      std::set<NodeId> side{m};
      for (NodeId n = 0; n < members_; ++n) {
        if (chance(2) == 0) side.insert(n);
      }
      count("partition");
      tell("the network falls in two: " + std::to_string(side.size()) +
           " members are without the coordinator");
      CutSide without{now_, {}};
      for (const auto a : side) {
        for (NodeId b = 0; b <= members_; ++b) {
          if (side.contains(b)) continue;
          cuts_.insert({a, b});
          cuts_.insert({b, a});
        }
        auto& applied = without.applied[a];
        for (FragmentId p = 0; processes_[a].member && p < layout_.fragment_count(); ++p)
          applied.push_back(processes_[a].member->fragments()[p].round);
      }
      if (side.size() < members_ && !without_coordinator_) without_coordinator_ = std::move(without);
      break;
    }
    case 6: {
      if (other == m || other >= members_) return;
      count("lane broken");
      break_link(lane(m, other, static_cast<ChunkId>(chance(lanes_))));
      return;
    }
    case 7:
      count("control connection broken");
      break_link(process.control);
      return;
    case 8:
      if (!coordinator_ || !disk_) return;
      crash_coordinator(chance(4) == 0);
      at(back_after, [this] {
        if (!coordinator_) start_coordinator(disk_was_lost_);
      });
      return;
    default:
      count("member slowed down");
      process.slowness = static_cast<int>(2 + chance(20));
      at(back_after, [this, m] { processes_[m].slowness = 1; });
      return;
  }
  // What stays cut for longer than TCP waits is broken.
  at(detect_timeout, [this] {
    for (const auto& [a, b] : cuts_) {
      for (auto& [place, link] : lanes_up_) {
        if (std::pair(std::get<0>(place), std::get<1>(place)) == std::pair(std::min(a, b), std::max(a, b)))
          break_link(link);
      }
      if (a < members_ && b == members_) break_link(processes_[a].control);
      if (b < members_ && a == members_) break_link(processes_[b].control);
    }
  });
  at(back_after, [this] {
    if (now_ >= calm_from_) return;
    tell("the cuts heal");
    if (without_coordinator_) {
      for (const auto& [m, applied] : without_coordinator_->applied) {
        const auto& cut_off = processes_[m];
        if (!cut_off.alive || !cut_off.member || applied.empty() ||
            now_ - without_coordinator_->from < 2 * detect_timeout)
          continue;
        count("side without the coordinator came back");
      }
      without_coordinator_.reset();
    }
    heal();
  });
}

}  // namespace isthmus::outer_sync::protocol
