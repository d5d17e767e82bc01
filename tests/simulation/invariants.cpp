// The rules that hold in every world (docs/protocol.md, Invariants).

#include "world.h"

#include <algorithm>
#include <array>
#include <utility>

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

/// I1, I2: all members of a view have one history.
void World::check_chain(const Process& process) {
  const auto view = process.member->view().number;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto& state = process.member->fragments()[p];
    const auto [place, is_new] = agreed_.try_emplace({view, p, state.round}, state.chain);
    if (!is_new && place->second != state.chain)
      return fail("member " + std::to_string(process.id) + " has a different chain at round " +
                  std::to_string(state.round) + " of fragment " + std::to_string(p) + " in view " +
                  std::to_string(view) + " (I1, I2)");
    settle(process, p);
  }
}

/// A round that all members of the last announced view have applied is settled, unless an operator has given
/// the view up.
void World::settle(const Process& process, FragmentId p) {
  const auto& view = process.member->view();
  const auto& state = process.member->fragments()[p];
  auto& by = applied_by_[{p, state.round, prefix_of(state.chain)}];
  by.insert(process.replica);
  if (view.number == checked_ &&
      std::ranges::all_of(view.members, [&](const MemberInfo& info) { return by.contains(id_of(info)); })) {
    settled_.insert_or_assign({p, state.round}, state.chain);
  }
}

/// I10: settled rounds are kept: the next view contains a member that has them. (A view may have a single
/// member that dies while members of an older view survive; rounds that only the dead member had applied are
/// lost.)
void World::check_settled(const NewView& message) {
  for (const auto& [place, chain] : settled_) {
    const auto [p, r] = place;
    const auto& rounds = message.chains[p];
    const auto same = std::ranges::find(rounds, r, &FragmentState::round);
    const bool in_history = rounds.back().round >= r && (same == rounds.end() || same->chain == chain);
    // A round that was delivered before a seal may have been applied after it.
    if (in_history || (rounds.back().round < r && is_held(message, p, r))) continue;
    const auto& by = applied_by_.at({p, r, prefix_of(chain)});
    const auto is_gone = [this](ReplicaId replica) {
      return dead_.contains(replica) || node_of_.at(replica) == reducer_;  // a reducer has no state
    };
    if (std::ranges::all_of(by, is_gone)) continue;
    return fail("round " + std::to_string(r) + " of fragment " + std::to_string(p) +
                ", which all members of a view had applied, is lost in view " +
                std::to_string(message.view.number) + " (I10)");
  }
}

/// I4: a run begins with all its replicas. If its first view has begun at no member, because no member
/// received it, the next view takes the remaining members, as after any loss.
void World::check_beginning(const NewView& message) {
  const auto fresh = [this](const MemberInfo& info) {
    return !trains(info) || !processes_[node_of(info)].used;
  };
  if (message.reference > 0 || !std::ranges::all_of(message.view.members, fresh)) return;
  const auto here = static_cast<std::size_t>(std::ranges::count_if(message.view.members, trains));
  if (here == options_.replicas) begun_tokens_.push_back(message.token);
  if (std::ranges::count(begun_tokens_, message.token) == 0)
    fail("the run begins with " + std::to_string(here) + " of " + std::to_string(options_.replicas) +
         " replicas (I4)");
}

/// I7, for an announced view: all its members can reach the round of the foremost of them, on one history.
void World::check_view(const NewView& message) {
  checked_ = message.view.number;
  check_settled(message);
  check_beginning(message);
  settled_.clear();
  applied_by_.clear();
  const auto view = " in view " + std::to_string(checked_);
  for (std::size_t i = 0; i < message.view.members.size(); ++i) {
    const auto& process = processes_[node_of(message.view.members[i])];
    const auto name = "member " + std::to_string(process.id);
    if (!process.answer || process.answer->view != checked_) continue;  // it has died meanwhile
    if (process.id == reducer_ && process.answer->activated != message.reference) continue;  // it begins anew
    if (process.id != reducer_ && process.answer->activated > message.reference)
      return fail(name + " has been in a later view than the reference" + view + " (I7)");
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      const auto& chain = message.chains[p];
      const auto& own = process.answer->fragments[p];
      if (process.answer->activated != message.reference && std::ranges::find(chain, own) == chain.end())
        return fail(name + " has a different history than the others" + view + " (I7)");
      for (auto r = message.applied[i][p] + 1; r <= chain.back().round; ++r) {
        if (!is_held(message, p, r))
          return fail(name + " needs round " + std::to_string(r) + " of fragment " + std::to_string(p) +
                      ", which no member has" + view + " (I7)");
      }
    }
  }
}

bool World::is_held(const NewView& message, FragmentId p, Round r) const {
  const auto fixed = std::ranges::find_if(message.fixed, [&](const FixedRound& candidate) {
    return candidate.fragment == p && candidate.round == r;
  });
  if (fixed == message.fixed.end()) return false;
  for (std::size_t i = 0; i < layout_.chunks_of(p).size(); ++i) {
    if (std::ranges::none_of(fixed->holders, [&](const auto& holder) { return holder.second.has(i); }))
      return false;
  }
  return true;
}

/// I7, when a view begins: the member has the results that the others expect from it.
void World::check_holdings(const Process& process, const NewView& message, MemberIndex self) {
  if (message.view.number != process.member->sealed()) return;
  for (const auto& fixed : message.fixed) {
    const auto mine =
        std::ranges::find_if(fixed.holders, [&](const auto& holder) { return holder.first == self; });
    if (mine == fixed.holders.end()) continue;
    const auto held = process.member->held(fixed.fragment, fixed.round);
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (mine->second.has(i) && !held[i])
        return fail("member " + std::to_string(process.id) + " has dropped a result of round " +
                    std::to_string(fixed.round) + " of fragment " + std::to_string(fixed.fragment) +
                    " that others expect from it (I7)");
    }
  }
}

/// I10: a member with the newest round of every fragment is not evicted. Neither is a member that lags by no
/// more rounds than results are kept for, if a trainer that stays was in the run for these rounds.
void World::check_evicted(NodeId m, const std::string& reason) {
  const auto place = answers_.find(m);
  if (place == answers_.end()) return;
  const auto& evicted = place->second;
  const auto stays = [&](const auto& entry) {
    const auto& [other, answer] = entry;
    return other != reducer_ && answer.sealed.view == evicted.sealed.view && !answer.evicted;
  };
  // Reasons for an eviction when a view is planned. A member may also be evicted for its lag, or because it
  // reported a different history itself.
  constexpr std::array planned{"no member holds", "is not one of the run's", "can continue from",
                               "is further ahead"};
  const auto says = [&](const char* words) { return reason.find(words) != std::string::npos; };
  if (std::ranges::any_of(planned, says) && std::ranges::none_of(answers_, stays))
    return fail("all members with the run's state are evicted (I10)");
  if ((!says("no member holds") && !says("is not one of the run's")) || m == reducer_) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    const auto& own = evicted.sealed.fragments[p];
    const auto newest = newest_of_reference(evicted, p);
    const auto keeps = [&](const auto& entry) {
      const auto& answer = entry.second;
      return stays(entry) && answer.first.size() > p && answer.first[p] <= own.round &&
             knows(answer.sealed, p, newest) && knows(answer.sealed, p, own);
    };
    if (own == newest) continue;
    if (own.round > newest.round || own.round + Member::always_kept < newest.round ||
        std::ranges::none_of(answers_, keeps))
      return;
  }
  fail("member " + std::to_string(m) + " is evicted although it is at most " +
       std::to_string(Member::always_kept) + " rounds behind and their results are kept (I10)");
}

/// If all trainers with the view's reference rounds are alive, one of them has the state.
void World::check_left(const NewView& message) {
  for (const auto& info : message.view.members) {
    const auto m = node_of(info);
    const auto place = answers_.find(m);
    if (m == reducer_ || place == answers_.end()) continue;
    const auto& process = processes_[m];
    const bool is_there = process.alive && process.incarnation == info.incarnation;
    if (place->second.sealed.activated == message.reference && !is_there) return;
  }
  if (state_is_lost())
    fail("all members with the run's state evicted themselves for a different history (I10)");
}

bool World::knows(const Sealed& sealed, FragmentId p, const FragmentState& state) {
  const auto& history = sealed.history[p];
  return sealed.fragments[p] == state || std::ranges::find(history, state) != history.end();
}

/// The newest round of the highest view that has begun at a trainer, according to the members' answers.
FragmentState World::newest_of_reference(const Answer& own, FragmentId p) const {
  auto reference = own.sealed.activated;
  for (const auto& [m, answer] : answers_) {
    if (answer.sealed.view == own.sealed.view && m != reducer_)
      reference = std::max(reference, answer.sealed.activated);
  }
  FragmentState newest;
  for (const auto& [m, answer] : answers_) {
    const auto& sealed = answer.sealed;
    if (sealed.view == own.sealed.view && sealed.activated == reference &&
        sealed.fragments[p].round >= newest.round)
      newest = sealed.fragments[p];
  }
  return newest;
}

/// I3: a contribution is in the result, is rejected by the rule, or comes back; exactly one of these. I4: no
/// member commits alone.
void World::check_result(const Process& process, const Deliver& round) {
  const auto first = layout_.chunks_of(round.fragment).first;
  const bool contributed = process.contributed[round.fragment] >= round.round;
  for (std::size_t i = 0; i < round.results.size(); ++i) {
    const auto known = results_.find(round.results[i].get());
    if (known == results_.end()) return fail("a result that no member has made (I11)");
    const auto& [contributors, present, of] = known->second;
    if (contributors.size() < closing_.least)
      return fail("a result of " + std::to_string(contributors.size()) + " contributions (I4)");
    if (present.size() < of && (closing_.quorum == 0 || present.size() < closing_.quorum))
      return fail("a result without a quorum (I4)");
    if (const auto problem = rejection_problem(known->second); !problem.empty()) return fail(problem);
    const bool in_it = std::ranges::find(contributors, process.replica) != contributors.end();
    if (in_it != round.included[i])
      return fail("member " + std::to_string(process.id) + " was notified " +
                  (in_it ? "that its contribution is not in a result that contains it"
                         : "that its contribution is in a result that does not contain it") +
                  " (I3)");
    if (!contributed) {
      if (in_it) return fail("a contribution that was not made is in a result (I3)");
      continue;
    }
    const bool was_there = std::ranges::find(present, process.replica) != present.end();
    if (round.rejected[i] != (was_there && !in_it))
      return fail("member " + std::to_string(process.id) + " was notified that its contribution was " +
                  (round.rejected[i] ? "rejected, but it was late" : "late, but it was rejected") + " (I3)");
    auto& made = made_.at({process.replica, round.round, static_cast<ChunkId>(first + i)});
    if (++made.settled > 1) return fail("a contribution is settled twice (I3)");
    count(in_it ? "contribution committed" : was_there ? "contribution rejected" : "contribution returned");
  }
}

/// The rule must reject the sick member's contribution if three or more are present, unless too few would
/// remain; it must reject no others.
std::string World::rejection_problem(const Result& result) const {
  const auto is_sick = [this](ReplicaId replica) { return sick_ == node_of_.at(replica); };
  for (const auto replica : result.present) {
    const bool in_it = std::ranges::find(result.contributors, replica) != result.contributors.end();
    if (!in_it && !is_sick(replica)) return "a healthy contribution was rejected (I3)";
    if (in_it && is_sick(replica) && result.present.size() >= 3 && result.present.size() > closing_.least)
      return "a sick contribution is in a result (I3)";
  }
  return {};
}

/// I12: newly assigned samples are not done, and no other member of the view has them.
void World::check_drawn(const Process& process, const SampleRange& range) {
  const SampleSet drawn({range});
  if (const auto done = drawn.common(done_everywhere(process.member->ledger())); !done.empty()) {
    std::string before;
    for (const auto& [replica, theirs] : drawn_by_) {
      if (!theirs.common(done).empty()) before += " " + std::to_string(node_of_.at(replica));
    }
    const auto& first = done.ranges().front();
    return fail("member " + std::to_string(process.id) + " was assigned samples that are done, of track " +
                std::to_string(first.track) + " from " + std::to_string(first.begin) + " to " +
                std::to_string(first.end) + "; members" + before + " were trained on them (I12)");
  }
  if (range.track < options_.replicas &&
      process.member->view().members[process.member->self()].slot != range.track)
    count("samples of a lost member given to another");
  for (const auto& other : processes_) {
    if (other.id == process.id || !other.alive || !other.member || !other.in_run) continue;
    if (other.member->view().number != process.member->view().number) continue;
    const auto theirs = without(other.drawn, done_everywhere(other.member->ledger()));
    if (theirs.common(drawn).empty()) continue;
    return fail("members " + std::to_string(process.id) + " and " + std::to_string(other.id) +
                " of one view were assigned the same samples (I12)");
  }
}

/// I12: members that have applied the same rounds have the same ledger.
void World::check_ledger(const Process& process, FragmentId p) {
  const auto& state = process.member->fragments()[p];
  const auto& own = process.member->ledger()[p];
  if (own.unknown() > 0) return count("round of a fragment with a gap in its ledger");
  const auto [place, is_new] = ledgers_.try_emplace({p, state.round, prefix_of(state.chain)}, own);
  if (own.round() != state.round || place->second != own)
    return fail("member " + std::to_string(process.id) + " has a different ledger of fragment " +
                std::to_string(p) + " at round " + std::to_string(state.round) + " (I12)");
  if (is_new) check_twice(own.twice());
  check_nothing_is_lost(process);
  check_taken(process);
}

/// I12: once the rounds with which a view began are applied, samples that it withholds are done or were
/// assigned to one of its members.
void World::check_taken(const Process& process) {
  if (!process.in_run || !process.member->in_view() || unknown_rounds(process.member->ledger()) > 0) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (process.member->fragments()[p].round < process.decided[p]) return;
  }
  auto left = without(process.taken, done_everywhere(process.member->ledger()));
  for (const auto& member : process.member->view().members) left.remove(drawn_by_[id_of(member)]);
  if (left.empty()) return;
  const auto& first = left.ranges().front();
  fail("samples of track " + std::to_string(first.track) + " from " + std::to_string(first.begin) + " to " +
       std::to_string(first.end) + " are neither done nor assigned nor free (I12)");
}

/// I12: samples are in a fragment's rounds twice only if two replicas were assigned them.
void World::check_twice(const SampleSet& twice) {
  const auto fresh = without(twice, twice_);
  if (fresh.empty()) return;
  count("samples in rounds twice");
  SampleSet once, explained;
  for (const auto& [replica, drawn] : drawn_by_) once.add(drawn.common(fresh), &explained);
  if (explained != fresh) return fail("samples of one replica are in a fragment's rounds twice (I12)");
  twice_.add(fresh);
}

/// I12: samples that a member was trained on are done or rejected, or still to be contributed or answered.
void World::check_nothing_is_lost(const Process& process) {
  if (process.id == reducer_ || unknown_rounds(process.member->ledger()) > 0) return;
  for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    auto found = process.member->ledger()[p].done();
    found.add(process.pending[p]);
    found.add(process.rejected[p]);
    for (const auto& [place, samples] : process.handed_in) {
      if (place.first == p) found.add(samples);
    }
    if (without(process.drawn, found).empty()) continue;
    return fail("member " + std::to_string(process.id) + " was trained on samples that fragment " +
                std::to_string(p) + " has lost (I12)");
  }
}

/// I6: a member's memory is bounded.
void World::check(const Process& process) {
  const auto chunks = layout_.chunk_count();
  const auto most =
      chunks + chunks * members_ * (Member::window + 1) + chunks * (Member::max_kept + Member::window + 1);
  if (process.member->chunks_held() > most)
    fail("member " + std::to_string(process.id) + " holds " + std::to_string(process.member->chunks_held()) +
         " chunks; at most " + std::to_string(most) + " are needed (I6)");
  if (process.exchanges && process.exchanges->chunks_held() > chunks * (2 + Exchanges::max_kept * members_))
    fail("too many exchanged chunks are kept (I6)");
  const auto max_sent = chunks * members_ * (Member::max_kept + Member::window + 1);
  if (process.member->unacknowledged() > max_sent) fail("too many messages are kept (I6)");
}

/// I6: before the next view, a member forgets rounds that it applied between two views. Otherwise each view
/// change would add to its memory.
void World::check_forgotten(const Process& process, const Sealed& sealed) {
  for (const auto& held : sealed.held) {
    const auto last = sealed.fragments[held.fragment].round;
    if (held.round + Member::max_kept <= last)
      fail("member " + std::to_string(process.id) + " seals with results of round " +
           std::to_string(held.round) + " of fragment " + std::to_string(held.fragment) + " after round " +
           std::to_string(last) + " (I6)");
  }
}

/// I5: after all faults have ended, all members take part and every fragment advances. A view change may be
/// under way at any time, so one moment without is enough.
void World::check_end() {
  auto missing = missing_at_the_end();
  over_ = missing.empty();
  if (over_) return;
  if (now_ >= end_ + longest_view_change) return fail(missing + " although all faults have ended (I5)");
  at(heartbeat, [this] { check_end(); });
}

std::string World::missing_at_the_end() {
  const auto knows = [](const Process& process) { return process.alive && process.member && process.in_run; };
  if (!coordinator_) return "there is no coordinator";
  for (const auto& process : processes_) {
    const auto name = "member " + std::to_string(process.id);
    if (!knows(process)) return name + " does not take part";
    if (process.member->view().number != coordinator_->view() || !process.member->in_view())
      return name + " is in view " + std::to_string(process.member->view().number) + ", the coordinator in " +
             std::to_string(coordinator_->view()) + ",";
    if (process.member->settings() != coordinator_->settings()) return name + " has different settings";
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      const auto round = process.member->fragments()[p].round;
      if (round < calm_rounds_[p] + rounds_in_calm)
        return "fragment " + std::to_string(p) + " stays at round " + std::to_string(round) + " at " + name;
    }
  }
  return {};
}

}  // namespace isthmus::outer_sync::protocol
