// How a run stops, at a step on which all members agree (docs/protocol.md).

#include <algorithm>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// How the final states of the trainers that are done compare.
struct Comparison {
  std::string problem;  ///< they differ, and must not
  std::string apart;    ///< they differ because they were stopped at different rounds
  Digest hash;          ///< of the first trainer
};

/// While no round commits, each member stops where it is, and one may have applied a result that has not
/// reached another.
bool stopped_apart(const MemberStatus& one, const MemberStatus& other) {
  const auto &rounds = one.heartbeat.fragments, &others = other.heartbeat.fragments;
  return rounds != others || rounds.empty();  // empty: a connection without a report yet
}

/// `counts`: whether a member belongs to the end.
template <class Counts>
Comparison compare_results(const Roster& roster, bool stopping, Counts counts) {
  Comparison found;
  const Roster::Members::value_type* first = nullptr;
  for (const auto& one : roster.members()) {
    const auto& [name, member] = one;
    if (!member.done || !trains(member) || !counts(member)) continue;  // reducers have no parameters
    if (first == nullptr) first = &one;
    if (member.result.global_hash == first->second.result.global_hash) continue;
    if (stopping && stopped_apart(member, first->second))
      found.apart = name + " and " + first->first +
                    " were stopped while no round committed, and have not applied the same rounds; resume "
                    "from the last checkpoint";
    else
      found.problem = "global hashes of " + name + " and " + first->first + " differ at the end";
  }
  if (first != nullptr) found.hash = first->second.result.global_hash;
  return found;
}

}  // namespace

void Coordinator::request_stop(const std::string& reason) {
  if (ending_.stopping || is<phase::Over>()) return;
  const bool lost = state_is_lost();
  ending_.stopping = true;
  out_.say("stopping: " + reason);
  steering_.drop("the run is being stopped", out_);
  if (gathers())
    return end(Ended::How::stopped,
               first_view_.goes_back_to ? stopped_without_state : "stopped before the first step");
  if (lost || (trainers() == 0 && outlook().last().all_left()) || must_end_without_state())
    return end_without_state();
  dismiss_newcomers();
  broadcast(Hold{});
}

/// No member with the run's state is here or will come: no step to stop at can be agreed.
bool Coordinator::must_end_without_state() {
  const bool none_has_it = roster_.count([](const MemberStatus& member) { return begun(member) > 0; }) == 0;
  return ending_.stopping && is<phase::Suspended>() && none_has_it && !expects_more() &&
         !lost_trainer_may_return();
}

/// The run is stopped, and no member with its state will come. If all trainers have left, reports their
/// reasons.
void Coordinator::end_without_state() {
  if (trainers() == 0 && outlook().last().all_left())
    return end(Ended::How::failed, losses_.last + "; resume from the last checkpoint");
  end(Ended::How::stopped, stopped_without_state);
}

void Coordinator::settle_stop() {
  // After a restart, waits for the reports of all members: a member that has stopped goes no further.
  if (!ending_.stopping || expects_more()) return;
  auto last = ending_.stop_step;
  for (const auto& [name, other] : members()) {
    if (other.role == Role::joining || !trains(other)) continue;
    if (!other.held) return;  // a member that is done answers, too: all must reach its last step
    last = std::max(last.value_or(0), other.held_step);
  }
  if (last == ending_.stop_step) return;  // losing a member changes nothing: others may have stopped there
  ending_.stop_step = last;
  send_to_trainers(StopAt{*last});
}

void Coordinator::on_done(MemberStatus& member, const Done& done) {
  if (member.role == Role::joining) return;  // it has trained nothing
  member.done = true;
  member.result = done;
  if (trains(member)) begin_to_end();
  finish_if_all_done();
}

void Coordinator::begin_to_end() {
  ending_.at_last_step = true;
  steering_.drop("the run is ending", out_);
  dismiss_newcomers();
}

/// Refuses replicas that are still copying the state: it is too late for them to take part.
void Coordinator::dismiss_newcomers() {
  for (auto next = members().begin(); next != members().end();) {
    const auto& [name, member] = *next++;
    if (member.role != Role::joining) continue;
    out_.say(name + " is too late: " + too_late);
    out_.send(member.connection, Refused{too_late});
    remove(std::string(name));
  }
}

/// Whether the run ends with this member: it may be in a view; or all trainers that may not be have calendars
/// that close their links.
bool Coordinator::ends_with(const MemberStatus& member) const {
  return roster_.able(member) ||
         (member.closed && member.role == Role::ready && roster_.able_trainers() == 0);
}

void Coordinator::finish_if_all_done() {
  if (expects_more()) return;  // their ends must be reported, too
  const auto here = [this](const MemberStatus& member) { return ends_with(member) && trains(member); };
  const auto done = [&](const MemberStatus& member) { return here(member) && member.done; };
  const auto is_busy = [this](const MemberStatus& member) { return ends_with(member) && !member.done; };
  if (roster_.count(here) == 0 || roster_.count(done) < roster_.count(here)) return;
  for (const auto& [name, member] : members()) {
    if (!trains(member) && is_busy(member))  // trainers needed this reducer until now
      out_.send(member.connection, StopAt{roster_.first_trainer()->heartbeat.step});
  }
  if (roster_.count(is_busy) == 0) finish();
}

void Coordinator::finish() {
  settle_evaluations(true);
  const auto counts = [this](const MemberStatus& member) { return !member.closed || ends_with(member); };
  const auto found = compare_results(roster_, ending_.stopping, counts);
  const bool stopped = found.problem.empty() && !found.apart.empty();
  std::vector<Round> last;  // members that are done have just reported theirs
  for (const auto& [name, member] : members()) raise(last, rounds_of(member));
  const auto result = stopped ? ControlMessage(Abort{found.apart}) : Finished{found.problem, found.hash};
  observers_.end({HeartbeatReply{0, 0, {}, last}, result}, out_);  // they then copy the last rounds
  for (const auto& [name, member] : members()) {
    const bool out = !counts(member);
    if (out) out_.say(name + " is not part of the end: its calendar closes its link");
    out_.send(member.connection,
              Finished{out ? std::string() : found.problem,
                       (stopped || out) && member.done ? member.result.global_hash : found.hash});
    out_.close(member.connection);
  }
  steering_.drop("the run has ended", out_);
  enter(phase_, phase::Over{});
  const auto how = stopped                 ? Ended::How::stopped
                   : found.problem.empty() ? Ended::How::finished
                                           : Ended::How::diverged;
  out_.add(Ended{how, stopped ? found.apart : found.problem});
}

void Coordinator::end(Ended::How how, const std::string& reason) {
  if (is<phase::Over>()) return;
  broadcast(Abort{reason});
  for (const auto& [name, member] : members()) out_.close(member.connection);
  observers_.end({Abort{reason}}, out_);
  steering_.drop("the run has ended", out_);
  enter(phase_, phase::Over{});
  out_.add(Ended{how, reason});
}

}  // namespace isthmus::outer_sync::protocol
