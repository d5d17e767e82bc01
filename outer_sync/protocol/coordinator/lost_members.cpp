// When a member counts as lost, and what follows. A member is lost if its connection closes, if it is silent
// or does not answer a seal for network.detect_timeout, if it and another member cannot reach each other, or
// if it breaks the protocol (coordinator.cpp). A member that lags or has another state than the run is
// evicted, and comes back as a newcomer.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::outer_sync::protocol {
namespace {

struct WorstConnected {
  std::string name, lacks;
};
/// The member that lacks most peers, and the first peer that it lacks. Among members that lack as many: a
/// reducer rather than a trainer, then the last by name.
std::optional<WorstConnected> worst_connected(const std::vector<RunRelays::Pair>& helpless,
                                              const Roster& roster) {
  std::map<ReplicaId, std::string> ids;
  for (const auto& [name, member] : roster.members()) {
    if (member.role == MemberStatus::Role::member) ids[id_of(member.hello.member)] = name;
  }
  std::map<std::string, std::set<std::string>> lacks;
  for (const auto& [a, b] : helpless) {
    const auto one = ids.find(a), other = ids.find(b);
    if (one == ids.end() || other == ids.end()) continue;
    lacks[one->second].insert(other->second);
    lacks[other->second].insert(one->second);
  }
  if (lacks.empty()) return std::nullopt;
  const auto worst = std::ranges::max_element(lacks, {}, [&](const auto& entry) {
    const auto& [lacking, peers] = entry;
    return std::tuple(peers.size(), !trains(roster.members().at(lacking)), lacking);
  });
  return WorstConnected{worst->first, *worst->second.begin()};
}

}  // namespace

// ---- how a loss is noticed ----

void Coordinator::closed(ConnectionId connection) {
  out_.closed(connection);
  if (steering_.closed(connection) || observers_.closed(connection, out_)) return;
  const auto name = roster_.name_of(connection);
  if (name.empty() || is<phase::Over>()) return;
  lose({name}, "is lost: its connection closed");
}

/// Returns whether members were lost.
bool Coordinator::lose_silent() {
  std::vector<std::string> silent;
  for (const auto& [name, member] : members()) {
    if (now_ - member.heard > options_.detect_timeout) silent.push_back(name);
  }
  if (silent.empty()) return false;
  lose(silent, "is lost: silent for longer than network.detect_timeout");
  return true;
}

/// Returns whether members were lost because they did not answer the seal.
bool Coordinator::lose_unanswered() {
  const auto* changing = std::get_if<phase::Changing>(&phase_);
  if (changing == nullptr || now_ - changing->since <= options_.detect_timeout) return false;
  std::vector<std::string> unanswered;
  for (const auto& [name, member] : members()) {
    if (roster_.able(member) && !member.answered) unanswered.push_back(name);
  }
  if (unanswered.empty()) return false;
  lose(unanswered, "did not answer within network.detect_timeout");
  return true;
}

/// Two members that reach the coordinator but not each other need a relay. If no member can relay for a pair,
/// the two cannot be in one view. One is left out, and may come back.
void Coordinator::check_links(const MemberStatus& member) {
  if (member.heartbeat.view == number_) reports_.relays.add(id_of(member.hello.member), member.heartbeat);
  const auto helpless = reports_.relays.settle(now_, options_.detect_timeout);
  reports_.tell_relays(roster_, out_);
  const auto worst = worst_connected(helpless, roster_);
  if (!worst) return;
  const auto& own = members().at(worst->name).hello.member;
  const auto& other = members().at(worst->lacks).hello.member;
  roster_.bar(worst->name, options_.detect_timeout);
  lose(
      {worst->name},
      "is left out: there is no connection between " +
          (can_be_dialled(own) ? own.address : "it (it opens no port)") + " and " + other.name +
          (can_be_dialled(other) ? " at " + other.address : " (it opens no port)") +
          ", and no other member reaches both; make sure that each address is reachable from the other side");
}

/// With a quorum the others need not wait for a member that has fallen behind, and they do not keep the
/// results that it lacks for ever. Reports of the others may be newer than its own, by network.detect_timeout
/// at most. So the member is given that time to come near the rounds that the others had when it began, and
/// is evicted if it has not.
void Coordinator::check_lag(const std::string& name, const std::vector<Round>& newest) {
  auto* member = roster_.find(name);
  if (member == nullptr || member->heartbeat.view != number_) return;
  const auto rounds = rounds_of(*member);
  for (FragmentId p = 0; p < member->to_reach.size(); ++p) {
    const auto goal = member->to_reach[p];
    if (goal <= Member::max_lag || rounds[p] >= goal - Member::max_lag) continue;
    if (now_ - member->lags_since <= options_.detect_timeout) return;
    evict(name, "it is at round " + std::to_string(rounds[p]) + " of fragment " + std::to_string(p) +
                    ", the others are at " + std::to_string(newest[p]));
    return change_view(name + " lags");
  }
  member->to_reach = newest;
  member->lags_since = now_;
}

// ---- what follows ----

/// The member may come back, but is left out of views for a while, each time for longer. `name` is passed by
/// value: it may be the member's key.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Coordinator::drop_for(std::string name, const std::string& problem) {
  const auto why = "broke the protocol: " + problem;
  out_.send(roster_.members().at(name).connection, Refused{name + " " + why});
  roster_.bar(name, options_.detect_timeout);
  lose({name}, why + "; dropped");
}

/// The replica comes back as a newcomer under another incarnation, because its contributions so far belong to
/// a replica that is gone. `name` is passed by value: it may be the member's key.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Coordinator::evict(std::string name, const std::string& reason) {
  out_.say(name + " must copy the state from others: " + reason);
  out_.send(roster_.members().at(name).connection, Evicted{reason});
  remove(name);
}

void Coordinator::remove(const std::string& name) {
  out_.close(roster_.members().at(name).connection);
  roster_.remove(name);
}

void Coordinator::lose(const std::vector<std::string>& names, const std::string& how, bool said_goodbye) {
  const bool all_were_here = trainers() == first_view_.planned;
  bool was_in_view = false, trained = false;
  std::string lost;
  for (const auto& name : names) {
    const auto& member = roster_.members().at(name);
    const bool trains_here = trains(member);
    was_in_view = was_in_view || member.role != Role::joining;
    trained = trained || trains_here;
    if (trains_here && said_goodbye) losses_.left.insert(id_of(member.hello.member));
    remove(name);
    if (trains_here && !said_goodbye) losses_.at[name] = now_;
    out_.say(name + " " + how + (gathers() && trains_here ? "; its place is free again" : ""));
    append(lost, name + " " + how, "; ");
  }
  if (auto* gathering = std::get_if<phase::Gathering>(&phase_)) {
    if (trained && all_were_here) *gathering = {.since = now_};                // the others wait again
    if (first_view_.goes_back_to && trainers() == 0) gathering->since = now_;  // replicas may be restarting
    return begin_first_view_if_sealed();  // the others may have waited only for this one
  }
  out_.add(MembersChanged{});
  if (trained) losses_.last = lost;
  if (trained && trainers() == 0 && said_goodbye && !lost_trainer_may_return() && !all_may_return())
    return end(Ended::How::failed, lost);
  if (was_in_view) change_view(lost);
  settle_stop();
}

/// A coordinator that was suspended finds all connections closed, and the members come back.
bool Coordinator::lost_trainer_may_return() {
  std::erase_if(losses_.at,
                [this](const auto& entry) { return now_ - entry.second > options_.join_timeout; });
  return !losses_.at.empty();
}

/// A run without trainers makes no progress: it ends, unless all of them may come back.
void Coordinator::end_if_trainers_stay_away() {
  if (trainers() > 0) losses_.said_that_no_trainer_is_here = false;
  if (trainers() > 0 || gathers()) return losses_.no_trainer_since.reset();
  if (!losses_.no_trainer_since) losses_.no_trainer_since = now_;
  if (now_ - *losses_.no_trainer_since <= options_.join_timeout) return;
  if (!all_may_return())
    return end(Ended::How::failed, "no replica has been here for network.join_timeout" +
                                       (losses_.last.empty() ? "" : " (" + losses_.last + ")") +
                                       "; resume from the last checkpoint");
  say_that_no_trainer_is_here();
}

void Coordinator::say_that_no_trainer_is_here() {
  if (!std::exchange(losses_.said_that_no_trainer_is_here, true))
    out_.say(
        "no replica has been here for network.join_timeout: waiting, since they may be training without the "
        "coordinator; `isthmus ctl stop` ends the run");
}

}  // namespace isthmus::outer_sync::protocol
