// Faults of processes and connections, at random moments and from ambushes (world.h), and their end.

#include "world.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

void World::heal() {
  tell("all faults end");
  cuts_.clear();
  if (now_ >= calm_from_) lanes_down_.clear();
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
  go_on_in_the_calm();
  at(3s, [this] { recover_if_the_survivors_are_gone(); });
  at(calm_time / 2, [this] { calm_rounds_ = newest_rounds(); });
}

std::vector<Round> World::newest_rounds() const {
  std::vector<Round> newest(layout_.fragment_count(), 0);
  for (const auto& process : processes_) {
    for (FragmentId p = 0; process.member && p < layout_.fragment_count(); ++p)
      newest[p] = std::max(newest[p], process.member->fragments()[p].round);
  }
  return newest;
}

/// A member that knows the run's rounds must stay; otherwise the run would continue from a checkpoint.
bool World::may_crash(NodeId m) const {
  ViewNumber highest = 0;
  for (const auto& process : processes_) {
    if (process.alive && process.member && process.in_run)
      highest = std::max(highest, process.member->view().number);
  }
  if (disk_) highest = std::max(highest, disk_->number);
  std::size_t survivors = 0;
  for (NodeId other = 0; other < members_; ++other) {
    const auto& process = processes_[other];
    if (other == m || other == reducer_ || !process.alive || !process.member || !process.in_run) continue;
    const bool listed = !disk_ || std::ranges::any_of(disk_->members, [&](const MemberInfo& info) {
      return id_of(info) == process.replica;
    });
    const bool current = process.member->view().number > 0 && process.member->sealed() + 1 >= highest;
    survivors += listed && current ? 1 : 0;
  }
  return survivors > 0;
}

/// Strikes after the current event, because an ambush is called while the process is at work.
void World::ambush(Moment moment, NodeId m) {
  if (now_ >= calm_from_) return;
  for (auto& ambush : ambushes_) {
    if (ambush.moment != moment || ambush.countdown-- > 0) continue;
    ambush.countdown = chance(40);
    count("ambush");
    const auto target = chance(4) == 0 ? chance(members_) : m;
    at(Time(1), [this, fault = ambush.fault, target] { strike(fault, target); });
  }
}

void World::disturb() { strike(static_cast<Fault>(chance(faults)), chance(members_)); }

void World::strike(Fault fault, NodeId m) {
  if (now_ >= calm_from_) return;
  const auto away = chance(3) == 0 ? some(200ms) : some(3s);
  const auto other = chance(members_ + 1);
  switch (fault) {
    case Fault::crash:
      return crash_for(m, chance(3) == 0 ? some(20ms) : away);
    case Fault::stand_still:
      return stand_still(m, away);
    case Fault::one_way_cut:
    case Fault::cut:
      return cut_for(m, other, fault == Fault::cut, away);
    case Fault::alone:
      return cut_off({m}, away);
    case Fault::partition: {
      std::set<NodeId> side{m};
      for (NodeId n = 0; n < members_; ++n) {
        if (chance(2) == 0) side.insert(n);
      }
      return cut_off(side, away);
    }
    case Fault::lane:
      if (other == m || other >= members_) return;
      count("lane broken");
      return break_link(lane(m, other, static_cast<ChunkId>(chance(lanes_))));
    case Fault::lane_down:
      return take_lane_down(m, away);
    case Fault::control:
      count("control connection broken");
      return break_link(processes_[m].control);
    case Fault::coordinator:
      return lose_coordinator(away);
    case Fault::slow:
      count("member slowed down");
      processes_[m].slowness = static_cast<int>(2 + chance(20));
      return at(away, [this, m] { processes_[m].slowness = 1; });
  }
}

void World::crash_for(NodeId m, Time away) {
  if (!processes_[m].alive || (!may_crash(m) && chance(8) != 0)) return;
  crash(m);
  at(away, [this, m] {
    count("member restart");
    start(m);
  });
}

void World::stand_still(NodeId m, Time away) {
  auto& process = processes_[m];
  if (!process.alive || process.stopped) return;
  tell("member " + std::to_string(m) + " stands still");
  count("member stopped and continued");
  process.stopped = true;
  at(away, [this, m, life = process.life] {
    auto& stopped = processes_[m];
    if (stopped.life != life || !stopped.stopped) return;
    tell("member " + std::to_string(m) + " continues");
    stopped.stopped = false;
    for (auto& event : std::exchange(stopped.backlog, {})) event();
  });
}

void World::cut_for(NodeId from, NodeId to, bool both_ways, Time away) {
  if (from == to) return;
  tell("cut " + std::string(both_ways ? "between " : "from ") + std::to_string(from) +
       (both_ways ? " and " : " to ") + std::to_string(to));
  count(both_ways ? "cut" : "one-way cut");
  cuts_.insert({from, to});
  if (both_ways) cuts_.insert({to, from});
  end_cuts_after(away);
}

/// The coordinator is on the other side.
void World::cut_off(const std::set<NodeId>& side, Time away) {
  count("partition");
  std::string names;
  for (const auto m : side) names += " " + std::to_string(m);
  tell("cut off from the rest and the coordinator:" + names);
  for (const auto a : side) {
    for (NodeId b = 0; b <= members_; ++b) {
      if (side.contains(b)) continue;
      cuts_.insert({a, b});
      cuts_.insert({b, a});
    }
  }
  remember_side(side);
  end_cuts_after(away);
}

void World::remember_side(const std::set<NodeId>& side) {
  if (side.size() == members_ || without_coordinator_) return;
  without_coordinator_ = {now_, {}};
  for (const auto m : side) {
    auto& applied = without_coordinator_->applied[m];
    for (FragmentId p = 0; processes_[m].member && p < layout_.fragment_count(); ++p)
      applied.push_back(processes_[m].member->fragments()[p].round);
  }
}

/// Breaks connections that have been cut for longer than TCP waits.
void World::break_what_is_cut() {
  for (const auto& [a, b] : cuts_) {
    for (auto& [place, link] : lanes_up_) {
      if (std::pair(std::get<0>(place), std::get<1>(place)) == std::pair(std::min(a, b), std::max(a, b)))
        break_link(link);
    }
    if (a < members_ && b == members_) break_link(processes_[a].control);
    if (b < members_ && a == members_) break_link(processes_[b].control);
  }
}

void World::end_cuts_after(Time away) {
  at(detect_timeout, [this] { break_what_is_cut(); });
  at(away, [this] {
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

/// Takes one of a member's lanes to all others down, so that some of its fragments advance and others do not.
void World::take_lane_down(NodeId m, Time away) {
  const auto down = std::pair(m, static_cast<std::size_t>(chance(lanes_)));
  tell("lane " + std::to_string(down.second) + " of member " + std::to_string(m) + " is down");
  count("lane down");
  lanes_down_.insert(down);
  for (NodeId other = 0; other < members_; ++other) {
    if (other != m) break_link(lane(m, other, static_cast<ChunkId>(down.second)));
  }
  at(away, [this, down] { lanes_down_.erase(down); });
  if (chance(2) == 0) at(some(away), [this] { break_link(processes_[chance(members_)].control); });
}

void World::lose_coordinator(Time away) {
  if (!coordinator_ || !disk_) return;
  crash_coordinator(chance(4) == 0);
  // A coordinator that is back at once meets leases of its former self, and loses a member that has one
  // before it has sealed.
  const bool at_once = chance(2) == 0;
  at(at_once ? some(50ms) : away, [this, at_once] {
    if (!coordinator_) start_coordinator(disk_was_lost_);
    if (at_once) at(some(300ms), [this] { strike(Fault::control, chance(members_)); });
  });
}

/// Each of the two closes its own chunks alone and gets none of the other's, until the view changes.
void World::tear() {
  if (now_ >= calm_from_) return;
  count("two torn apart");
  cut_for(0, 1, true, detect_timeout);
  at(some(detect_timeout), [this] { break_link(processes_[chance(members_)].control); });
}

/// I5: members that reach all others do not wait for two members that cannot reach each other, or for one
/// member that no other reaches. These stay apart for long but reach the coordinator; there is no other
/// fault.
void World::sever() {
  const auto a = chance(members_), b = (a + 1 + chance(members_ - 1)) % members_;
  const bool from_all = chance(3) == 0;
  count(from_all ? "one severed from all for long" : "two severed for long");
  for (NodeId other = 0; other < members_; ++other) {
    if (from_all || other == b) cut_for(a, other, true, severed_time);
  }
  if (!from_all) severed_pair_ = {a, b};
  at(severed_time, [this, a, b, from_all, before = newest_rounds()] {
    severed_pair_.reset();
    // With a quorum, or without the reducer, the others may meanwhile have advanced too far.
    const bool wait = !from_all && closing_.quorum == 0 && a != reducer_ && b != reducer_;
    for (const auto m : wait ? std::set{a, b} : std::set<NodeId>()) {
      const auto& process = processes_[m];
      for (FragmentId p = 0; p < before.size(); ++p) {
        if (process.member && process.in_run &&
            process.member->fragments()[p].round >= before[p] + rounds_in_calm)
          continue;
        return fail("member " + std::to_string(m) + " has not advanced in fragment " + std::to_string(p) +
                    ", although another member reaches both (I5)");
      }
    }
    const auto newest = newest_rounds();
    for (FragmentId p = 0; p < newest.size(); ++p) {
      if (newest[p] < before[p] + rounds_in_calm)
        return fail("fragment " + std::to_string(p) + " waits at round " + std::to_string(newest[p]) +
                    " for members that cannot reach each other (I5)");
    }
    heal();
  });
}

/// The view that the newcomer got just now is lost on its way to the other members.
void World::leave_alone(NodeId newcomer) {
  if (now_ >= calm_from_) return;
  count("view begun by a newcomer first");
  for (NodeId m = 0; m < members_; ++m) {
    if (m != newcomer) break_link(processes_[m].control);
  }
}

/// Kills all members except the one copying the state, and destroys the coordinator's disk. That member then
/// has neither the state nor initial parameters.
void World::lose_the_state(NodeId fetcher) {
  if (now_ >= calm_from_ || !coordinator_ || !disk_ || !processes_[fetcher].learning) return;
  count("state of the run lost");
  for (NodeId m = 0; m < members_; ++m) {
    if (m == fetcher || !processes_[m].alive) continue;
    crash(m);
    at(some(300ms), [this, m] { start(m); });
  }
  crash_coordinator(true);
  at(some(300ms), [this] {
    if (!coordinator_) start_coordinator(disk_was_lost_);
  });
}

}  // namespace isthmus::outer_sync::protocol
