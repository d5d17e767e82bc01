// Returns a run to its checkpoints when all members have lost its state (docs/protocol.md, Lost state).
// Never returns it to its beginning: that is an operator's decision.

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

constexpr auto reason_to_start_again =
    "all members with the run's state are gone; start again, with --resume";

bool offers_checkpoints(const Coordinator::MemberStatus& member) {
  return trains(member) && member.hello.fresh && member.hello.resume;
}

/// As hard to guess as the token before it.
Digest token_after(const Digest& token) {
  return Hasher()
      .update(std::string_view("goes back to its checkpoints"))
      .update(std::as_bytes(std::span(token.bytes)))
      .finish();
}

}  // namespace

/// Counts the trainers of the last view by what has become of them.
Coordinator::LastTrainers Coordinator::last_trainers() const {
  LastTrainers last;
  if (!options_.last) return last;
  for (const auto& info : options_.last->members) {
    if (!protocol::trains(info)) continue;
    ++last.in_view;
    const auto place = members_.find(info.name);
    if (place != members_.end()) {
      const auto& member = place->second;
      const bool same = member.hello.member.incarnation == info.incarnation && member.role != Role::joining;
      ++(same || begun(member) > 0 ? last.with_state : last.without_state);
      if (offers_checkpoints(member)) ++last.offering;
    } else if (left_.contains(id_of(info))) {
      ++last.left;
    }
  }
  return last;
}

bool Coordinator::all_have_left() const {
  const auto last = last_trainers();
  return last.in_view > 0 && last.left == last.in_view;
}

/// Trainers that may have the state are cut off; or this coordinator is, and the run continues without it.
bool Coordinator::all_may_return() const { return options_.elastic && options_.last && !all_have_left(); }

/// Absent trainers are given up after as long as the rounds since a checkpoint can have taken: waiting longer
/// costs more than repeating these rounds.
bool Coordinator::others_are_given_up() const {
  return options_.checkpoint_interval != Time{} && no_survivor_since_ &&
         now_ - *no_survivor_since_ > patience();
}

Time Coordinator::patience() const { return std::max(options_.join_timeout, options_.checkpoint_interval); }

/// No trainer of the last view has its rounds any more; or at least half of them have lost these, and the
/// others are given up.
bool Coordinator::state_is_lost() const {
  if (phase_ != Phase::suspended || options_.recover || stopping_ || ending_ || trainers() == 0) return false;
  const auto last = last_trainers();
  const auto gone = last.without_state + last.left;
  if (gone == 0 || last.with_state > 0) return false;
  return gone == last.in_view || (2 * gone >= last.in_view && others_are_given_up());
}

void Coordinator::note_survivors() {
  if (phase_ != Phase::suspended || !options_.last || has_survivor() || expects_more()) {
    no_survivor_since_.reset();
    goes_back_at_.reset();
  } else if (!no_survivor_since_ && trainers() > 0) {
    no_survivor_since_ = now_;
    if (!state_is_lost()) suspend(reason_without_survivor());
  }
}

/// The newest checkpoint from which the present trainers could begin.
CheckpointId Coordinator::newest_offered() const {
  std::vector<std::vector<CheckpointId>> lists;
  for (const auto& [name, member] : members_) {
    if (offers_checkpoints(member)) lists.push_back(member.hello.checkpoints);
  }
  return checkpoint_to_go_back_to(lists, std::max<std::size_t>(options_.least, 1), checkpoints_.complete());
}

/// Whether as many trainers as planned can begin at a checkpoint, or, after a wait, enough. Trainers without
/// a checkpoint join when the run continues. If trainers of the last view are absent, the present ones may
/// have only old checkpoints, because they were absent before. So the run returns no further than to the
/// newest checkpoint that all had.
bool Coordinator::may_go_back() const {
  const auto last = last_trainers();
  const bool all_are_back = last.offering == last.in_view;
  if (!all_are_back && (checkpoints_.complete() == 0 || newest_offered().step < checkpoints_.complete()))
    return false;
  const bool has_waited = (goes_back_at_ && now_ >= *goes_back_at_) || others_are_given_up();
  return count(offers_checkpoints) >=
         (has_waited ? std::max<std::size_t>(options_.least, 1) : options_.replicas);
}

/// Admitted newcomers copy the state from members that are gone, and members of an older view have another
/// state: both must restart.
void Coordinator::go_back_to_checkpoints() {
  if (!goes_back_at_) goes_back_at_ = now_ + options_.join_timeout;
  std::vector<std::string> stale;
  for (const auto& [name, member] : members_) {
    if (trains(member) && (member.admitted || !member.hello.fresh || begun(member) > 0))
      stale.push_back(name);
  }
  for (const auto& name : stale) send(members_.at(name), Abort{reason_to_start_again});
  if (!stale.empty()) {
    const auto last_lost = last_lost_;
    lose(stale, "starts again: all members with the run's state are gone");
    last_lost_ = last_lost;
    return;
  }
  if (may_go_back()) return begin_at_checkpoints();
  const auto last = last_trainers();
  const bool nobody_returns = last.left > 0 && last.left + last.without_state == last.in_view;
  if (nobody_returns && no_survivor_since_ && now_ - *no_survivor_since_ > patience())
    return end(Ended::How::failed, last_lost_ + "; start all replicas again, with --resume");
  if (const auto reason = reason_not_to_go_back(); reason != suspended_because_) suspend(reason);
}

std::string Coordinator::reason_not_to_go_back() const {
  std::string stale;
  for (const auto& [name, member] : members_) {
    if (trains(member) && !member.hello.resume) stale += " " + name;
  }
  const auto last = last_trainers();
  std::string condition;
  if (last.offering < last.in_view && checkpoints_.complete() == 0)
    condition = ", if all trainers of the last view are among them";
  else if (last.offering < last.in_view)
    condition = ", if they have the checkpoint of step " + std::to_string(checkpoints_.complete()) +
                " or a later one";
  return "no member here has the run's state; the run goes back to its checkpoints when " +
         std::to_string(options_.replicas) +
         " replicas are here that were started with --resume, or fewer after network.join_timeout" +
         condition + (stale.empty() ? "" : "; start again:" + stale);
}

void Coordinator::begin_at_checkpoints() {
  const auto checkpoint = newest_offered();
  if (checkpoint.step == 0) return end(Ended::How::failed, without_common_checkpoint());
  say("no member has the run's state any more: the run goes back to its checkpoints");
  goes_back_to_ = checkpoint;
  std::vector<std::string> others;  // they come back without state
  for (const auto& [name, member] : members_) {
    if (trains(member) ? !is_of_first_view(member.hello) : begun(member) > 0) others.push_back(name);
  }
  for (const auto& name : others) {
    if (trains(members_.at(name))) {
      say(name + " lacks the checkpoint of step " + std::to_string(checkpoint.step) +
          ": it copies the state from the others");
      remove(members_.find(name));  // it retries
    } else {
      evict(name, "the run goes back to its checkpoints");
    }
  }
  options_.token = token_after(options_.token);
  planned_ = trainers();
  started_ = now_;
  evaluations_.clear();
  checkpoints_.forget();
  if (settings_.pause_after != Settings::never)
    changes_.add({.what = ChangeRequest::What::pause, .by = "the coordinator", .change = {}});
  phase_ = Phase::joining;
  first_sealed_ = false;
  seal_first_view();
}

/// A replica planned for the first view has died meanwhile and has not come back.
void Coordinator::begin_with_fewer() {
  planned_ = std::max({trainers(), options_.least, std::size_t{1}});
  started_ = now_;
}

/// The run is stopped, and no member with its state will come. If all trainers have left, reports their
/// reasons.
void Coordinator::end_without_state() {
  if (trainers() == 0 && all_have_left())
    return end(Ended::How::failed, last_lost_ + "; resume from the last checkpoint");
  end(Ended::How::stopped, stopped_without_state);
}

/// Whether the member was absent when the run returned to its checkpoints.
bool Coordinator::is_left_behind(const Hello& hello) const {
  if (hello.activated == 0) return goes_back_to_ && !hello.fresh && phase_ == Phase::joining;
  if (!token_is_known_) return false;
  constexpr int max_attempts = 64;
  auto token = hello.token;
  for (int times = 0; times < max_attempts; ++times) {
    token = token_after(token);
    if (token == options_.token) return true;
  }
  return false;
}

void Coordinator::start_again(ConnectionId from, const Hello& hello) {
  say_of_stranger(hello.member.name +
                  " is from before the run went back to its checkpoints: it must start again");
  actions_.push_back(SendControl{from, Abort{reason_to_start_again}});
  close(from);
}

}  // namespace isthmus::outer_sync::protocol
