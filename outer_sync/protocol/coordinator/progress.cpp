// Handles the reports of members in training: chains, digests, health, evaluations, checkpoints.

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/forming/forming.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// Median over the members that have reported a speed, so that a single outlier has no effect.
double median_speed(const Roster& roster) {
  std::vector<double> speeds;
  for (const auto& [name, member] : roster.members()) {
    const double speed = member.heartbeat.inner_steps_per_second;
    if (member.role == MemberStatus::Role::member && std::isfinite(speed) && speed > 0)
      speeds.push_back(speed);
  }
  if (speeds.empty()) return 0;
  std::ranges::sort(speeds);
  return (speeds[(speeds.size() - 1) / 2] + speeds[speeds.size() / 2]) / 2;
}

/// Reports of a member's paths that follow each other sooner are ignored, because comparing all paths takes
/// time.
constexpr Time paths_apart = std::chrono::milliseconds(190);

/// Some members are about to enter a view.
bool a_member_joins(const Roster& roster) {
  using Role = MemberStatus::Role;
  return roster.count([](const MemberStatus& member) {
    return member.role == Role::ready || (member.role == Role::joining && member.admitted);
  }) > 0;
}

}  // namespace

void Coordinator::Reports::begin(const View& view, const FragmentLayout& layout) {
  digests.clear();
  chains.clear();
  health.begin(view, layout);
  paths.begin(view);
  deals.begin(view);
  relays.begin(view);
}

void Coordinator::on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat) {
  member.beat = now_;
  member.rates.add(now_, heartbeat.bytes_sent, heartbeat.step);
  member.heartbeat = heartbeat;
  if (trains(member) && heartbeat.view == number_ && is<phase::Running>()) steering_.report(out_);
  if (heartbeat.uplink > 0 && !member.closed) {
    member.uplink = heartbeat.uplink;
    if (!member.allowance) member.usual_uplink = heartbeat.uplink;
  }
  const auto common = common_checkpoint();
  if (checkpoints_.note_complete(common, now_) && options_.last) {
    options_.last->checkpoint = common;
    out_.add(Store{.view = *options_.last, .line = {}, .again = true});
  }
  auto reply = reply_to(member, heartbeat.number);
  const auto newest = reply.newest;
  if (reply.lease > 0) member.lease_end = now_ + options_.detect_timeout;
  out_.send(member.connection, std::move(reply));
  admit_waiting();  // this member may be the first possible donor, or past the warm-up now
  if (!is<phase::Running>() || member.role != Role::member) return;
  if (!check_reports(member)) return;
  out_.add(MembersChanged{});
  const auto name = member.hello.member.name;
  check_links(member);
  if (is<phase::Running>()) check_lag(name, newest);
  deal_again_if_links_changed();
}

HeartbeatReply Coordinator::reply_to(const MemberStatus& member, std::uint64_t number) const {
  HeartbeatReply reply{.view = 0,
                       .number = number,
                       .lowest = {},
                       .newest = {},
                       .lease = 0,
                       .inner_steps_per_second = median_speed(roster_),
                       .checkpoint = common_checkpoint()};
  if (is<phase::Running>()) {
    if (member.role == Role::member) {
      reply.view = number_;
      reply.lease = static_cast<std::uint64_t>(options_.detect_timeout.count());
    }
    reply.lowest.assign(layout_->fragment_count(), ~Round{0});
    reply.newest.assign(layout_->fragment_count(), 0);
    for (const auto& [name, other] : members()) {
      if (other.role != Role::member) continue;
      const auto rounds = rounds_of(other);
      for (FragmentId p = 0; p < layout_->fragment_count(); ++p) {
        reply.lowest[p] = std::min(reply.lowest[p], rounds[p]);
        if (trains(other)) reply.newest[p] = std::max(reply.newest[p], rounds[p]);
      }
    }
    // While a view with a newcomer forms, the others continue; results that it will need are kept as long as
    // possible.
    if (a_member_joins(roster_)) reply.lowest.assign(layout_->fragment_count(), 0);
  }
  // The rounds that a newcomer must reach before it is ready; the others may be waiting for it.
  if (is<phase::Suspended>() || newcomers_.are_waited_for(roster_, now_)) reply.newest = newest_of_donors();
  return reply;
}

/// Returns false if the run has ended, or a member was evicted.
bool Coordinator::check_reports(MemberStatus& member) {
  auto& heartbeat = member.heartbeat;
  const auto& info = member.hello.member;
  const auto digests = std::exchange(heartbeat.digests, {});
  const auto health = std::exchange(heartbeat.health, {});
  const auto paths = std::exchange(heartbeat.paths, {});
  if (heartbeat.view != number_) return true;
  if (heartbeat.fragments.size() <= layout_->fragment_count()) {
    if (const auto conflict = reports_.chains.add(info.name, heartbeat.fragments)) {
      end(Ended::How::diverged, "chain hashes of " + info.name + " and " + conflict->other +
                                    " differ at round " + std::to_string(conflict->round) + " of fragment " +
                                    std::to_string(conflict->fragment));
      return false;
    }
  }
  if (!all_have_the_same_state(member, digests)) return false;
  if (health.size() <= layout_->fragment_count()) {
    for (const auto& part : health) {
      if (auto judged = reports_.health.add(id_of(info), part)) out_.add(std::move(*judged));
    }
    for (auto& line : reports_.health.take_lines()) out_.say(std::move(line));
  }
  if (now_ - member.paths_at >= paths_apart) {
    member.paths_at = now_;
    reports_.paths.add(id_of(info), paths);
  }
  for (auto& line : reports_.paths.take_lines()) out_.say(std::move(line));
  return true;
}

void Coordinator::deal_again_if_links_changed() {
  const auto comparisons = reports_.paths.comparisons();
  if (std::exchange(paths_seen_, comparisons) == comparisons || comparisons % DealWatch::look_every != 0)
    return;
  if (!may_deal_again()) return;
  const auto limits = reports_.paths.limits();
  std::vector<Site> sites;
  auto applied = ~Round{0};
  for (const auto& [name, member] : members()) {
    if (member.role != Role::member) continue;
    sites.push_back(site_of(member, limits));
    for (const auto round : rounds_of(member)) applied = std::min(applied, round);
  }
  auto rule = options_.topology;
  rule.slow = limits.slow;
  const auto reason = reports_.deals.look(now_, applied, *layout_, sites, rule);
  if (!reason) return;
  out_.say(*reason);
  change_view(*reason);
}

/// A member with other global parameters than the majority must copy the state from the others. Without a
/// majority it is unknown which members are right, and the run ends; its checkpoints are compared when it is
/// resumed. Returns false if a member was evicted or the run has ended.
bool Coordinator::all_have_the_same_state(const MemberStatus& member,
                                          const std::vector<StateDigest>& digests) {
  if (digests.empty()) return true;
  std::set<std::string> trainers_in_view, odd;
  for (const auto& [name, other] : members()) {
    if (other.role == Role::member && trains(other)) trainers_in_view.insert(name);
  }
  std::string where;
  for (const auto& reported : digests) {
    const auto difference = reports_.digests.add(member.hello.member.name, reported, trainers_in_view);
    if (!difference) continue;
    where = "after round " + std::to_string(difference->round) + " of fragment " +
            std::to_string(difference->fragment);
    if (difference->odd.empty()) {
      std::string all;
      for (const auto& name : trainers_in_view) append(all, name);
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
    append(names, name);
    evict(name, "its global parameters differ from those of the majority " + where +
                    "; if that happens again, check the memory of its machine");
  }
  out_.add(MembersChanged{});
  change_view(names + " had other global parameters than the majority");
  return false;
}

void Coordinator::Reports::tell_relays(const Roster& roster, ActionQueue& out) {
  if (const auto news = relays.take_news()) {
    for (const auto& [name, member] : roster.members()) {
      if (member.role == Role::member) out.send(member.connection, *news);
    }
  }
  for (auto& line : relays.take_lines()) out.say(std::move(line));
}

std::vector<Coordinator::RelayedPair> Coordinator::relays() const {
  std::map<ReplicaId, std::string> names;
  for (const auto& [name, member] : members()) names[id_of(member.hello.member)] = name;
  std::vector<RelayedPair> out;
  for (const auto& [pair, by] : reports_.relays.relays()) {
    if (!names.contains(pair.first) || !names.contains(pair.second) || !names.contains(by)) continue;
    const auto& [one, other] = std::minmax(names.at(pair.first), names.at(pair.second));
    out.push_back({one, other, names.at(by)});
  }
  return out;
}

/// Members delete only checkpoints older than this one, so all members always have one in common.
std::uint64_t Coordinator::common_checkpoint() const {
  if (!is<phase::Running>()) return 0;
  std::vector<std::vector<CheckpointId>> lists;
  for (const auto& [name, member] : members()) {
    if (member.role == Role::member && trains(member)) lists.push_back(member.heartbeat.checkpoints);
  }
  return newest_in_all(std::move(lists)).step;
}

/// An evaluation is complete when all trainers of the view have reported; at the end, when all that are done
/// have. Then no view is needed, because a coordinator restarted at the end forms none.
void Coordinator::settle_evaluations(bool all_done) {
  if (!is<phase::Running>() && !all_done) return;
  const auto is_missing = [&](const std::vector<std::string>& by) {
    return std::ranges::any_of(members(), [&](const auto& entry) {
      const auto& [name, member] = entry;
      return (all_done ? member.done : member.role == Role::member) && trains(member) &&
             std::ranges::find(by, name) == by.end();
    });
  };
  for (const auto& [step, loss] : reports_.evaluations.take_complete(is_missing))
    out_.add(Evaluated{step, loss});
}

}  // namespace isthmus::outer_sync::protocol
