// Returns a run to its checkpoints when all members have lost its state, and to its beginning when a part of
// the warm-up is all that is lost (docs/protocol.md, Lost state). Otherwise it never returns to its
// beginning: that is an operator's decision.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/forming/forming.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {

Outlook Coordinator::outlook() const {
  return {options_, roster_, std::get_if<phase::Suspended>(&phase_), losses_.left, checkpoints_.complete(),
          now_};
}

/// Trainers that may have the state are cut off; or this coordinator is, and the run continues without it.
bool Coordinator::all_may_return() const {
  return options_.elastic && options_.last && !outlook().last().all_left();
}

bool Coordinator::state_is_lost() const { return !ending_.has_begun() && outlook().state_is_lost(); }

/// An operator recovers the run, and no member present has begun it.
bool Coordinator::state_is_gone() const {
  return is<phase::Suspended>() && options_.recover && !recovery_.token_is_known && !gathering_until_;
}

void Coordinator::note_survivors() {
  auto* suspended = std::get_if<phase::Suspended>(&phase_);
  if (suspended == nullptr) return;
  if (!options_.last || has_survivor() || expects_more()) {
    suspended->no_survivor_since.reset();
    suspended->goes_back_at.reset();
  } else if (!suspended->no_survivor_since && trainers() > 0) {
    suspended->no_survivor_since = now_;
    if (!state_is_lost()) suspend(reason_without_survivor(options_, checkpoints_.complete()));
  }
}

/// In the warm-up the state is more than the global parameters, so no member serves it. Members that are too
/// few for a round then wait in vain, and so do the others, which cannot copy the state. All of them begin
/// again: no more than a part of the warm-up is lost.
void Coordinator::repeat_warmup_if_stuck() {
  auto* suspended = std::get_if<phase::Suspended>(&phase_);
  if (suspended == nullptr) return;
  const bool may_repeat = !options_.recover && !ending_.has_begun() && !expects_more();
  if (!may_repeat ||
      !are_stuck_in_warmup(outlook().last(), roster_, options_.min_replicas(), options_.warmup_rounds))
    return suspended->stuck_since.reset();
  if (!suspended->stuck_since) {
    suspended->stuck_since = now_;
    return suspend(
        {.cause = phase::Obstacle::Cause::stuck_in_warmup,
         .text = "too few replicas with the run's state are here for a round, and in the warm-up no other "
                 "can copy it: if no more come back within network.join_timeout, the run begins its "
                 "warm-up again"});
  }
  if (now_ - *suspended->stuck_since <= options_.join_timeout) return;
  for (const auto& [name, member] : members()) {
    if (trains(member) && begun(member) > 0) suspended->sent_back.insert(id_of(member.hello.member));
  }
  go_back_to_checkpoints();
}

/// Admitted newcomers copy the state from members that are gone, and members of an older view have another
/// state: both must restart.
void Coordinator::go_back_to_checkpoints() {
  auto& suspended = std::get<phase::Suspended>(phase_);
  if (!suspended.goes_back_at) suspended.goes_back_at = now_ + options_.join_timeout;
  std::vector<std::string> stale;
  for (const auto& [name, member] : members()) {
    if (trains(member) && (member.admitted || !member.hello.fresh || begun(member) > 0))
      stale.push_back(name);
  }
  const bool repeats_warmup = outlook().repeats_warmup();
  const auto why =
      repeats_warmup ? "the run begins its warm-up again; start again, with --resume" : reason_to_start_again;
  for (const auto& name : stale) out_.send(members().at(name).connection, Abort{why});
  if (!stale.empty()) {
    const auto last_lost = losses_.last;
    lose(stale, repeats_warmup ? "starts again: the run begins its warm-up again"
                               : "starts again: all members with the run's state are gone");
    losses_.last = last_lost;
    return;
  }
  const auto now = outlook();
  if (now.may_go_back()) return begin_at_checkpoints();
  if (now.nobody_returns())
    return end(Ended::How::failed, losses_.last + "; start all replicas again, with --resume");
  if (auto reason = now.reason_to_wait(); !reason.is_same_as(suspended.because)) suspend(std::move(reason));
}

void Coordinator::begin_at_checkpoints() {
  const auto checkpoint = outlook().newest_offered();
  if (checkpoint.step == 0 && !outlook().repeats_warmup())
    return end(Ended::How::failed, without_common_checkpoint(roster_, options_));
  out_.say(checkpoint.step == 0
               ? "no member has the run's state any more: the run begins its warm-up again"
               : "no member has the run's state any more: the run goes back to its checkpoints");
  first_view_.goes_back_to = checkpoint;
  std::vector<std::string> others;  // they come back without state
  for (const auto& [name, member] : members()) {
    if (trains(member) ? !is_of_first_view(member.hello, run_at(member.hello)) : begun(member) > 0)
      others.push_back(name);
  }
  for (const auto& name : others) {
    if (trains(members().at(name))) {
      out_.say(copies_without_checkpoint(name, checkpoint.step));
      remove(name);  // it retries
    } else {
      evict(name, "the run goes back to its checkpoints");
    }
  }
  options_.token = token_after(options_.token);
  first_view_.planned = trainers();
  reports_.evaluations.clear();
  checkpoints_.forget();
  if (steering_.paused()) steering_.pause_by_coordinator();
  enter(phase_, phase::Gathering{.since = now_, .all_here_since = now_});
  seal_first_view();
}

}  // namespace isthmus::outer_sync::protocol
