// Handles the reports of members in training: chains, audits, health, links, lag and evaluations.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {

void Coordinator::on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat) {
  member.beat = now_;
  member.rates.add(now_, heartbeat.bytes_sent, heartbeat.step);
  member.heartbeat = heartbeat;
  if (trains(member)) report_changes(heartbeat.view);
  if (heartbeat.uplink > 0) member.uplink = heartbeat.uplink;
  const auto checkpoint = common_checkpoint();
  note_checkpoint(checkpoint);
  HeartbeatReply reply{.view = 0,
                       .number = heartbeat.number,
                       .lowest = {},
                       .newest = {},
                       .lease = 0,
                       .inner_steps_per_second = median_speed(),
                       .checkpoint = checkpoint};
  if (phase_ == Phase::running) {
    if (member.role == Role::member) {
      reply.view = number_;
      reply.lease = static_cast<std::uint64_t>(options_.detect_timeout.count());
      member.lease_end = now_ + options_.detect_timeout;
    }
    reply.lowest.assign(layout_->fragment_count(), ~Round{0});
    reply.newest.assign(layout_->fragment_count(), 0);
    for (const auto& [name, other] : members_) {
      if (other.role != Role::member) continue;
      const auto rounds = rounds_of(other);
      for (FragmentId p = 0; p < layout_->fragment_count(); ++p) {
        reply.lowest[p] = std::min(reply.lowest[p], rounds[p]);
        if (trains(other)) reply.newest[p] = std::max(reply.newest[p], rounds[p]);
      }
    }
    // While a view with a newcomer forms, the others continue; results that it will need are kept as long as
    // possible.
    if (somebody_joins()) reply.lowest.assign(layout_->fragment_count(), 0);
  }
  // The rounds that a newcomer must reach before it is ready; the others may be waiting for it.
  if (phase_ == Phase::suspended || waits_for_newcomer()) reply.newest = newest_of_donors();
  const auto newest = reply.newest;
  send(member, std::move(reply));
  admit_waiting();  // this member may be the first possible donor, or past the warm-up now
  if (phase_ != Phase::running || member.role != Role::member) return;
  check_chains(member);
  if (phase_ != Phase::running) return;
  const auto audits = std::exchange(member.heartbeat.audits, {});
  if (heartbeat.view == number_ && !all_have_the_same_state(member, audits)) return;
  take_health(member);
  take_paths(member);
  actions_.push_back(MembersChanged{});
  const auto name = member.hello.member.name;
  check_links(member);
  if (phase_ == Phase::running) check_lag(name, newest);
}

void Coordinator::check_chains(const MemberStatus& member) {
  const auto& name = member.hello.member.name;
  const auto& fragments = member.heartbeat.fragments;
  if (member.heartbeat.view != number_ || fragments.size() > layout_->fragment_count()) return;
  if (const auto conflict = chains_.add(name, fragments)) {
    end(Ended::How::diverged, "chain hashes of " + name + " and " + conflict->other + " differ at round " +
                                  std::to_string(conflict->round) + " of fragment " +
                                  std::to_string(conflict->fragment));
  }
}

/// A member with other global parameters than the majority must copy the state from the others. Without a
/// majority it is unknown which members are right, and the run ends; its checkpoints are compared when it is
/// resumed. Returns false if a member was evicted or the run has ended.
bool Coordinator::all_have_the_same_state(const MemberStatus& member, const std::vector<Audit>& audits) {
  if (audits.empty()) return true;
  std::set<std::string> trainers_in_view, odd;
  for (const auto& [name, other] : members_) {
    if (other.role == Role::member && trains(other)) trainers_in_view.insert(name);
  }
  std::string where;
  for (const auto& audit : audits) {
    const auto difference = audits_.add(member.hello.member.name, audit, trainers_in_view);
    if (!difference) continue;
    where = "after round " + std::to_string(difference->round) + " of fragment " +
            std::to_string(difference->fragment);
    if (difference->odd.empty()) {
      std::string all;
      for (const auto& name : trainers_in_view) all += (all.empty() ? "" : ", ") + name;
      end(Ended::How::diverged, "the global parameters of " + all + " differ " + where +
                                    ", and no majority of them agrees; check the memory of these machines, "
                                    "and resume the run from its last common checkpoint");
      return false;
    }
    odd.insert(difference->odd.begin(), difference->odd.end());
  }
  if (odd.empty()) return true;
  std::string names;
  for (const auto& name : odd) {
    names += (names.empty() ? "" : ", ") + name;
    evict(name, "its global parameters differ from those of the majority " + where +
                    "; if that happens again, check the memory of its machine");
  }
  actions_.push_back(MembersChanged{});
  change_view(names + " had other global parameters than the majority");
  return false;
}

void Coordinator::take_health(MemberStatus& member) {
  const auto parts = std::exchange(member.heartbeat.health, {});
  if (parts.empty() || parts.size() > layout_->fragment_count() || member.heartbeat.view != number_) return;
  const auto id = id_of(member.hello.member);
  for (const auto& part : parts) {
    if (auto judged = health_.add(id, part)) actions_.push_back(std::move(*judged));
  }
  for (auto& line : health_.take_lines()) say(std::move(line));
}

void Coordinator::take_paths(MemberStatus& member) {
  const auto reports = std::exchange(member.heartbeat.paths, {});
  if (member.heartbeat.view != number_) return;
  paths_.add(id_of(member.hello.member), reports);
  for (auto& line : paths_.take_lines()) say(std::move(line));
}

/// Two members that reach the coordinator but not each other need a relay.
void Coordinator::check_links(const MemberStatus& member) {
  if (member.heartbeat.view == number_) relays_.add(id_of(member.hello.member), member.heartbeat);
  const auto helpless = relays_.settle(now_, options_.detect_timeout);
  tell_relays();
  if (!helpless.empty()) leave_out(helpless);
}

/// The two members of a pair that no member can relay cannot be in one view. Leaves out the member that lacks
/// most peers, of equals a reducer, then the later one by name. It may come back.
void Coordinator::leave_out(const std::vector<RunRelays::Pair>& pairs) {
  std::map<ReplicaId, std::string> ids;
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member) ids[id_of(member.hello.member)] = name;
  }
  std::map<std::string, std::set<std::string>> lacks;
  for (const auto& [a, b] : pairs) {
    const auto one = ids.find(a), other = ids.find(b);
    if (one == ids.end() || other == ids.end()) continue;
    lacks[one->second].insert(other->second);
    lacks[other->second].insert(one->second);
  }
  if (lacks.empty()) return;
  const auto worst = std::ranges::max_element(lacks, {}, [this](const auto& entry) {
    const auto& [lacking, peers] = entry;
    return std::tuple(peers.size(), !trains(members_.at(lacking)), lacking);
  });
  const auto& [name, others] = *worst;
  const auto& own = members_.at(name).hello.member;
  const auto& other = members_.at(*others.begin()).hello.member;
  bars_.add(name, now_, options_.detect_timeout);
  lose(
      name,
      "is left out: there is no connection between " +
          (can_be_dialled(own) ? own.address : "it (it opens no port)") + " and " + other.name +
          (can_be_dialled(other) ? " at " + other.address : " (it opens no port)") +
          ", and no other member reaches both; make sure that each address is reachable from the other side");
}

void Coordinator::tell_relays() {
  if (const auto news = relays_.take_news()) {
    for (const auto& [name, member] : members_) {
      if (member.role == Role::member) send(member, *news);
    }
  }
  for (auto& line : relays_.take_lines()) say(std::move(line));
}

std::vector<Coordinator::RelayedPair> Coordinator::relays() const {
  std::map<ReplicaId, std::string> names;
  for (const auto& [name, member] : members_) names[id_of(member.hello.member)] = name;
  std::vector<RelayedPair> out;
  for (const auto& [pair, by] : relays_.relays()) {
    if (!names.contains(pair.first) || !names.contains(pair.second) || !names.contains(by)) continue;
    const auto& [one, other] = std::minmax(names.at(pair.first), names.at(pair.second));
    out.push_back({one, other, names.at(by)});
  }
  return out;
}

/// Median over the members that have reported a speed, so that a single outlier has no effect.
double Coordinator::median_speed() const {
  std::vector<double> speeds;
  for (const auto& [name, member] : members_) {
    const double speed = member.heartbeat.inner_steps_per_second;
    if (member.role == Role::member && std::isfinite(speed) && speed > 0) speeds.push_back(speed);
  }
  if (speeds.empty()) return 0;
  std::ranges::sort(speeds);
  return (speeds[(speeds.size() - 1) / 2] + speeds[speeds.size() / 2]) / 2;
}

/// Members delete only checkpoints older than this one, so all members always have one in common.
std::uint64_t Coordinator::common_checkpoint() const {
  if (phase_ != Phase::running) return 0;
  std::vector<std::vector<CheckpointId>> lists;
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member && trains(member)) lists.push_back(member.heartbeat.checkpoints);
  }
  return newest_in_all(std::move(lists)).step;
}

std::vector<Round> Coordinator::newest_of_donors() const {
  std::vector<Round> newest;
  for (const auto& donor : donors()) {
    const auto& reported = members_.at(donor.name).heartbeat.fragments;
    newest.resize(std::max(newest.size(), reported.size()), 0);
    for (std::size_t p = 0; p < reported.size(); ++p) newest[p] = std::max(newest[p], reported[p].first);
  }
  return newest;
}

/// A member's rounds as last reported, but at least those with which it sealed.
std::vector<Round> Coordinator::rounds_of(const MemberStatus& member) const {
  std::vector<Round> rounds;
  for (const auto& fragment : member.state.fragments) rounds.push_back(fragment.round);
  const auto& reported = member.heartbeat.fragments;
  for (std::size_t p = 0; p < rounds.size() && reported.size() == rounds.size(); ++p)
    rounds[p] = std::max(rounds[p], reported[p].first);
  return rounds;
}

/// With a quorum the others need not wait for a member that has fallen behind, and they do not keep the
/// results that it lacks for ever. The others' reports may be many rounds newer than this one. So the member
/// is evicted only if, for as long as a report can be in transit, it has not come near the rounds that the
/// others had at the beginning of that time.
void Coordinator::check_lag(const std::string& name, const std::vector<Round>& newest) {
  const auto place = members_.find(name);
  if (place == members_.end() || place->second.heartbeat.view != number_) return;
  auto& member = place->second;
  const auto rounds = rounds_of(member);
  for (FragmentId p = 0; p < member.to_reach.size(); ++p) {
    const auto goal = member.to_reach[p];
    if (goal <= Member::max_lag || rounds[p] >= goal - Member::max_lag) continue;
    if (now_ - member.lags_since <= options_.detect_timeout) return;
    evict(name, "it is at round " + std::to_string(rounds[p]) + " of fragment " + std::to_string(p) +
                    ", the others are at " + std::to_string(newest[p]));
    return change_view(name + " lags");
  }
  member.to_reach = newest;
  member.lags_since = now_;
}

void Coordinator::on_ready(MemberStatus& member) {
  if (member.role != Role::joining || !member.admitted) return;
  member.role = Role::ready;
  if (missed_.size() >= max_members) missed_.clear();  // bounds the map
  ++missed_[member.hello.member.name];
  change_view(member.hello.member.name + " is ready to take part");
}

void Coordinator::on_eval(const MemberStatus& member, const EvalReport& report) {
  if (evaluations_.add(member.hello.member.name, report)) settle_evaluations();
}

/// An evaluation is complete when all trainers of the view have reported; at the end, when all that are done
/// have. Then no view is needed, because a coordinator restarted at the end forms none.
void Coordinator::settle_evaluations(bool all_done) {
  if (phase_ != Phase::running && !all_done) return;
  const auto is_missing = [&](const std::vector<std::string>& by) {
    return std::ranges::any_of(members_, [&](const auto& entry) {
      const auto& [name, member] = entry;
      return (all_done ? member.done : member.role == Role::member) && trains(member) &&
             std::ranges::find(by, name) == by.end();
    });
  };
  for (const auto& [step, loss] : evaluations_.take_complete(is_missing))
    actions_.emplace_back(Evaluated{step, loss});
}

}  // namespace isthmus::outer_sync::protocol
