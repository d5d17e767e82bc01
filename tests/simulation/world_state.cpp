// Members of a world that copy the state from others and follow the rounds until they are in a view.

#include "world.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

void World::learn(Process& process, const Admitted& admitted) {
  if (process.in_run || process.learning) return;
  tell("member " + std::to_string(process.id) + " is admitted");
  process.learning = process.used = true;
  process.said_ready = false;
  process.forget_member();
  process.restored.clear();  // of its checkpoint: it follows the others' state from now on
  process.contributed.assign(layout_.fragment_count(), 0);
  process.learned.assign(layout_.fragment_count(), std::nullopt);
  process.learned_ledger.assign(layout_.fragment_count(), {});
  process.donors.clear();
  for (const auto& info : admitted.donors) process.donors.push_back(node_of(info));
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) ask_for_state(process, p);
  if (doomed_ && now_ < calm_from_ && coordinator_ && disk_) {
    doomed_ = false;
    at(some(100ms), [this, m = process.id] { lose_the_state(m); });
  }
}

void World::ask_for_state(Process& process, FragmentId p) {
  if (!process.learning || process.in_run) return;
  const auto donor = process.donors.at(chance(process.donors.size()));
  // A restarted member is another replica: it has no state and gives none.
  const bool has_it = processes_[donor].alive && processes_[donor].in_run;
  const bool reachable = has_it && !cut(process.id, donor) && !cut(donor, process.id);
  if (!reachable || donor == process.id) {
    // After a while the list of donors is out of date: ask the coordinator for a new one.
    if (chance(8) == 0) return on_evicted(process);
    in(process, redial_after, [this, &process, p] { ask_for_state(process, p); });
    return;
  }
  const auto link = process.sources[p] = connect(donor, process.id);
  transmit(link, process.id, [this, donor, m = process.id, p, link] { give_state(donor, m, p, link); });
}

/// The donor may lag, while others have the missing rounds.
void World::ask_others_for_state(Process& process) {
  if (!process.learning || process.said_ready || chance(10) != 0) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (!process.learning) return;
    const auto& learned = process.learned.at(p);
    if (learned && p < process.newest.size() && learned->round + 1 < process.newest[p])
      ask_for_state(process, p);
  }
}

void World::give_state(NodeId donor, NodeId m, FragmentId p, const LinkPtr& link) {
  auto& process = processes_[donor];
  if (!process.member || !process.in_run) return break_link(link);
  process.followers.emplace_back(m, p, link);
  transmit(link, donor,
           [this, m, p, state = process.member->fragments()[p], ledger = process.member->ledger()[p], link] {
             if (processes_[m].sources[p] == link) handle_state(m, p, state, ledger);
           });
}

void World::forward(Process& donor, FragmentId p, const FragmentState& state) {
  for (const auto& [m, fragment, link] : donor.followers) {
    if (fragment != p) continue;
    transmit(link, donor.id, [this, to = m, p, state, link = link] {
      if (processes_[to].sources[p] == link) handle_state(to, p, state, std::nullopt);
    });
  }
}

void World::handle_state(NodeId m, FragmentId p, const FragmentState& state,
                         const std::optional<FragmentLedger>& snapshot) {
  auto& process = processes_[m];
  if (!process.learning || process.in_run) return;
  if (process.member) {
    if (process.member->sealed() > 0) return;  // the round may belong to the view that this member enters
    if (state.round == process.member->fragments()[p].round + 1)
      process.member->applied(p, state.round, state.chain);
    return;
  }
  auto& place = process.learned.at(p);
  if (snapshot) {
    place = state;
    process.learned_ledger[p] = *snapshot;
    count("fragment taken from a donor");
  } else if (place && state.round == place->round + 1) {
    place = state;
    process.learned_ledger[p].skip();
    count("round followed");
  }
  be_ready(process);
}

void World::be_ready(Process& process) {
  if (!process.learning || process.said_ready || process.in_run) return;
  if (process.learned.size() != layout_.fragment_count()) return;
  std::vector<FragmentState> fragments;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (!process.learned[p]) return;
    if (p < process.newest.size() && process.learned[p]->round + 1 < process.newest[p]) return;
    fragments.push_back(*process.learned[p]);
  }
  tell("member " + std::to_string(process.id) + " has the state");
  process.said_ready = true;
  process.member = std::make_unique<Member>(layout_, codecs_, closing_, std::move(fragments),
                                            process.learned_ledger, process.learned_settings);
  forget_samples(process);
  send_control(process, Ready{});
  ambush(Moment::ready, process.id);
}

}  // namespace isthmus::outer_sync::protocol
