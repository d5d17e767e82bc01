// How a run stops, at a step on which all members agree (docs/protocol.md).

#include <algorithm>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {

void Coordinator::request_stop(const std::string& reason) {
  if (stopping_ || phase_ == Phase::ended) return;
  const bool lost = state_is_lost();
  stopping_ = true;
  say("stopping: " + reason);
  drop_changes("the run is being stopped");
  if (phase_ == Phase::joining)
    return end(Ended::How::stopped, goes_back_to_ ? stopped_without_state : "stopped before the first step");
  if (lost || (trainers() == 0 && all_have_left()) || nobody_stops()) return end_without_state();
  dismiss_newcomers();
  broadcast(Hold{});
}

/// No member with the run's state is here or will come: no step to stop at can be agreed.
bool Coordinator::nobody_stops() {
  const bool nobody_has_it = count([](const MemberStatus& member) { return begun(member) > 0; }) == 0;
  return stopping_ && phase_ == Phase::suspended && nobody_has_it && !expects_more() &&
         !somebody_may_return();
}

void Coordinator::on_held(MemberStatus& member, const Held& held) {
  if (!stopping_ || member.held) return;
  member.held = true;
  member.held_step = held.step;
  settle_stop();
}

void Coordinator::settle_stop() {
  // After a restart, waits for the reports of all members: a member that has stopped goes no further.
  if (!stopping_ || expects_more()) return;
  auto last = stop_step_;
  for (const auto& [name, other] : members_) {
    if ((other.role != Role::member && other.role != Role::ready) || !trains(other)) continue;
    if (!other.held) return;  // a member that is done answers, too: all must reach its last step
    last = std::max(last.value_or(0), other.held_step);
  }
  if (last == stop_step_) return;  // losing a member changes nothing: others may have stopped there
  stop_step_ = last;
  announce_stop_step();
}

void Coordinator::announce_stop_step() {
  for (const auto& [name, member] : members_) {
    if (trains(member)) send(member, StopAt{*stop_step_});
  }
}

void Coordinator::on_done(MemberStatus& member, const Done& done) {
  if (member.role == Role::joining) return;  // it has trained nothing
  member.done = true;
  member.result = done;
  if (trains(member)) begin_to_end();
  finish_if_all_done();
}

void Coordinator::begin_to_end() {
  ending_ = true;
  drop_changes("the run is ending");
  dismiss_newcomers();
}

/// Refuses replicas that are still copying the state: it is too late for them to take part.
void Coordinator::dismiss_newcomers() {
  for (auto next = members_.begin(); next != members_.end();) {
    const auto place = next++;
    if (place->second.role != Role::joining) continue;
    say(place->first + " is too late: " + too_late);
    send(place->second, Refused{too_late});
    remove(place);
  }
}

void Coordinator::finish_if_all_done() {
  if (expects_more()) return;  // their ends must be reported, too
  const auto here = [this](const MemberStatus& member) { return able(member) && trains(member); };
  const auto done = [&](const MemberStatus& member) { return here(member) && member.done; };
  if (count(here) == 0 || count(done) < count(here)) return;
  for (const auto& [name, member] : members_) {
    if (!trains(member) && able(member) && !member.done)  // trainers needed this reducer until now
      send(member, StopAt{first_trainer()->heartbeat.step});
  }
  if (count([this](const MemberStatus& member) { return able(member) && !member.done; }) == 0) finish();
}

/// While no round commits, each member stops where it is, and one may have applied a result that has not
/// reached another.
bool Coordinator::stopped_apart(const MemberStatus& one, const MemberStatus& other) const {
  const auto &rounds = one.heartbeat.fragments, &others = other.heartbeat.fragments;
  return stopping_ && (rounds != others || rounds.empty());  // empty: a connection without a report yet
}

void Coordinator::finish() {
  settle_evaluations(true);
  std::string problem, apart;
  const Members::value_type* first = nullptr;
  for (const auto& one : members_) {
    const auto& [name, member] = one;
    if (!member.done || !trains(member)) continue;  // reducers have no parameters
    if (first == nullptr) first = &one;
    if (member.result.global_hash == first->second.result.global_hash) continue;
    if (stopped_apart(member, first->second))
      apart = name + " and " + first->first +
              " were stopped while no round committed, and have not applied the same rounds; resume from the "
              "last checkpoint";
    else
      problem = "global hashes of " + name + " and " + first->first + " differ at the end";
  }
  const Digest hash = first == nullptr ? Digest() : first->second.result.global_hash;
  const bool stopped = problem.empty() && !apart.empty();
  std::vector<Round> last;  // members that are done have just reported theirs
  for (const auto& [name, member] : members_) {
    const auto rounds = rounds_of(member);
    last.resize(std::max(last.size(), rounds.size()), 0);
    for (std::size_t p = 0; p < rounds.size(); ++p) last[p] = std::max(last[p], rounds[p]);
  }
  for (const auto& [connection, observer] : observers_) {  // it then copies the last rounds
    actions_.push_back(SendControl{connection, HeartbeatReply{0, 0, {}, last}});
    if (stopped)
      actions_.push_back(SendControl{connection, Abort{apart}});
    else
      actions_.push_back(SendControl{connection, Finished{problem, hash}});
    close(connection);
  }
  for (const auto& [name, member] : members_) {
    send(member, Finished{problem, stopped && member.done ? member.result.global_hash : hash});
    close(member.connection);
  }
  drop_changes("the run has ended");
  phase_ = Phase::ended;
  const auto how = stopped           ? Ended::How::stopped
                   : problem.empty() ? Ended::How::finished
                                     : Ended::How::diverged;
  actions_.push_back(Ended{how, stopped ? apart : problem});
}

void Coordinator::end(Ended::How how, const std::string& reason) {
  if (phase_ == Phase::ended) return;
  broadcast(Abort{reason});
  for (const auto& [name, member] : members_) close(member.connection);
  for (const auto& [connection, observer] : observers_) {
    actions_.push_back(SendControl{connection, Abort{reason}});
    close(connection);
  }
  drop_changes("the run has ended");
  phase_ = Phase::ended;
  actions_.push_back(Ended{how, reason});
}

}  // namespace isthmus::outer_sync::protocol
