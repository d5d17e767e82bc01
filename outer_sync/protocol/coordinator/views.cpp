// The first view, and changes from one view to the next (docs/protocol.md).

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

bool same_layout(const FragmentLayout& layout, const Sealed& sealed) {
  return sealed.chunk_elements == layout.chunk_elements() &&
         std::ranges::equal(sealed.layout, layout.fragments());
}

}  // namespace

// ---- the first view ----

/// Waits a moment for reducers: a reducer that comes later would cost a view change.
void Coordinator::seal_first_view_if_all_are_here() {
  if (phase_ != Phase::joining || first_sealed_ || trainers() != planned_) return;
  if (!all_here_since_) all_here_since_ = now_;
  const auto reducers = members_.size() - trainers();
  if (reducers >= options_.reducers || now_ - *all_here_since_ > options_.detect_timeout) seal_first_view();
}

void Coordinator::seal_first_view() {
  first_sealed_ = true;
  for (auto& [name, member] : members_) member.has_nothing = false;
  const bool resume = first_trainer()->hello.resume;
  const auto step = resume ? choose_checkpoint() : std::optional<std::uint64_t>(0);
  if (!step) return end(Ended::How::failed, without_common_checkpoint());
  if (options_.steps > 0 && *step > options_.steps)
    return end(Ended::How::failed, "the newest checkpoint common to all is of step " + std::to_string(*step) +
                                       ", and run.steps is " + std::to_string(options_.steps) +
                                       "; raise run.steps, or move newer checkpoints away");
  if (begin_elsewhere(*step)) return;
  resumed_from_ = *step;
  checkpoints_.begin_with(*step);
  if (*step > 0) say("resuming from the checkpoint of step " + std::to_string(*step));
  ++number_;
  for (auto& [name, member] : members_) {
    member.answered = false;
    if (!member.has_nothing) {
      member.begins_at = *step;
      send(member, Seal{number_, *step});
      continue;
    }
    say(name + " has no checkpoint: it copies the state from the others");
  }
}

/// The newest checkpoint common to all trainers that have any. Trainers without one join as newcomers, if the
/// run is elastic.
std::optional<std::uint64_t> Coordinator::choose_checkpoint() {
  if (goes_back_to_) return goes_back_to_->step;  // all trainers of the first view have it
  std::vector<std::vector<CheckpointId>> lists;
  for (auto& [name, member] : members_) {
    member.has_nothing = trains(member) && options_.elastic && member.hello.checkpoints.empty();
    if (trains(member) && !member.has_nothing) lists.push_back(member.hello.checkpoints);
  }
  const bool enough = lists.size() >= std::max<std::size_t>(options_.least, 1);
  const auto step = enough ? newest_in_all(std::move(lists)).step : 0;
  return step > 0 ? std::optional(step) : std::nullopt;
}

/// A replica restores a checkpoint only once. If another replica has replaced a lost one, trainers that were
/// ordered to restore another checkpoint must therefore restart. Returns true if there are any.
bool Coordinator::begin_elsewhere(std::uint64_t step) {
  std::vector<std::string> others;
  for (const auto& [name, member] : members_) {
    if (trains(member) && member.begins_at && (*member.begins_at != step || member.has_nothing))
      others.push_back(name);
  }
  constexpr auto reason = "the run begins at another checkpoint now; start again, with --resume";
  for (const auto& name : others) send(members_.at(name), Abort{reason});
  if (!others.empty()) lose(others, "starts again: the run begins at another checkpoint now");
  return !others.empty();
}

std::string Coordinator::without_common_checkpoint() const {
  std::string newest;
  for (const auto& [name, member] : members_) {
    if (!trains(member)) continue;
    const auto& own = member.hello.checkpoints;
    newest += (newest.empty() ? "" : ", ") + name + " has " +
              (own.empty() ? "none" : "checkpoints up to step " + std::to_string(std::ranges::max(own).step));
  }
  return "no checkpoint is complete and the same on all replicas (" + newest +
         "); restore the missing ones, start without --resume, or move away the checkpoints of the replicas "
         "that are behind: a replica without any copies the state from the others" +
         (options_.elastic
              ? ", of which there must be " + std::to_string(std::max<std::size_t>(options_.least, 1))
              : ", but not in a data-parallel run");
}

std::string Coordinator::initial_disagreement() const {
  const auto& first = *first_trainer();
  const auto& first_name = first.hello.member.name;
  const auto layout = layout_of(first.state.layout, first.state.chunk_elements);
  if (!layout) return "the fragment layout of " + first_name + " is invalid";
  for (const auto& [name, member] : members_) {
    if (!trains(member) || member.has_nothing) continue;
    if (!same_layout(*layout, member.state))
      return "the fragments of " + name + " and " + first_name + " differ";
    if (member.state.settings != first.state.settings)
      return "settings changed in mid-run (isthmus ctl set) are not the same in the checkpoints of " + name +
             " and " + first_name;
    if (member.state.parameters != first.state.parameters ||
        member.state.fragments != first.state.fragments) {
      return "global parameters of " + name + " and " + first_name +
             " differ before the first step; use the same build, seed and checkpoint";
    }
  }
  return {};
}

/// A member may have been lost since the seal: the first view needs all trainers, but only the reducers that
/// are here.
void Coordinator::begin_first_view_if_sealed() {
  if (!first_sealed_ || trainers() != planned_) return;
  if (unanswered_at_first() == 0) begin_first_view();
}

/// Members that were asked for their state and have not answered.
std::size_t Coordinator::unanswered_at_first() const {
  return count([](const MemberStatus& member) { return !member.answered && !member.has_nothing; });
}

/// An earlier first view may have begun at some of these members without a report. No round was committed in
/// it: while there are too few members for a view without the rest, no chunk closes without the rest either.
void Coordinator::begin_first_view() {
  if (auto difference = initial_disagreement(); !difference.empty())
    return end(Ended::How::diverged, difference);
  const auto& first = first_trainer()->state;
  if (auto problem = problem_of_settings(first.settings); !problem.empty())
    return end(Ended::How::failed, "the checkpoints contain " + problem +
                                       "; correct the config, or resume from earlier checkpoints");
  layout_ = layout_of(first.layout, first.chunk_elements);
  begin_view();
}

// ---- view changes ----

/// Members that cannot be reached are left out. From here on no round commits in older views.
void Coordinator::change_view(const std::string& why) {
  if (phase_ == Phase::joining || phase_ == Phase::ended) return;
  if (ending_) finish_if_all_done();
  if (phase_ == Phase::ended) return;
  if (!options_.elastic) return end(Ended::How::failed, why);
  if (expects_more()) {
    // The view that was about to begin may have lost the only member that knows the run's last rounds.
    if (phase_ == Phase::changing) suspend(why + "; waiting for the members of the last view");
    return;
  }
  const auto can_train = [this](const MemberStatus& member) { return able(member) && trains(member); };
  if (const auto here = count(can_train); here < std::max<std::size_t>(options_.least, 1)) {
    return suspend(why + "; " + std::to_string(here) + " of at least " + std::to_string(options_.least) +
                   " replicas are here");
  }
  if (!has_survivor()) return suspend(reason_without_survivor());
  if (const auto missing = missing_survivors(); !missing.empty()) {
    return suspend("fewer than half of the trainers of view " + std::to_string(options_.last->number) +
                   " are here, and another coordinator may be running with the others; waiting for " +
                   missing + "; if they are gone for good, start the coordinator with --recover --give-up " +
                   missing);
  }
  phase_ = Phase::changing;
  change_began_ = now_;
  ++number_;
  for (auto& [name, member] : members_) {
    member.answered = false;
    if (able(member) && trains(member)) slots_[name] = member.hello.member.slot = free_slot(name);
  }
  for (const auto& [name, member] : members_) {
    if (able(member)) send(member, Seal{number_, 0});
  }
}

/// A restarted coordinator waits for its members before it forms a view. They keep committing in theirs, and
/// a member left out because it came a moment late would have to copy the state.
bool Coordinator::expects_more() const {
  if (!gathering_until_ || now_ >= *gathering_until_) return false;
  if (!options_.last || options_.recover) return true;
  return !std::ranges::all_of(options_.last->members, [&](const MemberInfo& info) {
    const auto place = members_.find(info.name);
    return left_.contains(id_of(info)) || (place != members_.end() && able(place->second));
  });
}

/// Whether a trainer of the view announced last is here: then rounds that only these trainers know are not
/// lost.
bool Coordinator::has_survivor() const {
  if (!options_.last || options_.recover) return true;
  return std::ranges::any_of(options_.last->members, [&](const MemberInfo& info) {
    const auto place = members_.find(info.name);
    return protocol::trains(info) && place != members_.end() &&
           place->second.hello.member.incarnation == info.incarnation && able(place->second);
  });
}

std::string Coordinator::reason_without_survivor() const {
  const bool goes_back = options_.checkpoint_interval != Time{} && checkpoints_.complete() > 0;
  return "waiting for a member of view " + std::to_string(options_.last->number) +
         ", because only these may have the run's newest rounds; if all of them are gone for good, start the "
         "coordinator with --recover" +
         (goes_back ? ". Once half of them have been started again, the run goes back to its checkpoints "
                      "after run.checkpoint_interval"
                    : "");
}

/// Two coordinators that do not know of each other must not both form views. So this one needs half of the
/// trainers that may have the run's state, or `least` if that is fewer. Newcomers that it admits do not
/// count; a trainer that came back without the state has lost it. Returns the missing names, separated by
/// commas; empty if enough trainers are here.
std::string Coordinator::missing_survivors() const {
  if (!options_.last || options_.recover) return {};
  std::size_t here = 0, may_have_it = 0;
  std::string missing;
  for (const auto& info : options_.last->members) {
    if (!protocol::trains(info)) continue;
    const auto place = members_.find(info.name);
    const bool is_here = place != members_.end();
    if (is_here && place->second.hello.member.incarnation > info.incarnation) continue;
    ++may_have_it;
    if (is_here && able(place->second)) {
      ++here;
    } else {
      missing += (missing.empty() ? "" : ",") + info.name;
    }
  }
  const auto needed = std::min((may_have_it + 1) / 2, std::max<std::size_t>(options_.least, 1));
  return here >= needed ? std::string() : missing;
}

void Coordinator::suspend(const std::string& why) {
  if (phase_ != Phase::suspended || why != suspended_because_) say("rounds do not commit: " + why);
  suspended_because_ = why;
  phase_ = Phase::suspended;
  for (auto& [name, member] : members_) {
    if (member.role == Role::member) member.role = Role::ready;
  }
  broadcast(Suspended{why});
  drop_changes("rounds do not commit: " + why);
  actions_.push_back(MembersChanged{});
  admit_waiting();
}

void Coordinator::on_sealed(MemberStatus& member, const Sealed& sealed) {
  if (sealed.view != number_) return;
  const bool first = phase_ == Phase::joining;
  if (!first && phase_ != Phase::changing) return;
  const bool blank = !trains(member) && sealed.activated == 0;  // it knows nothing of the run yet
  if (!first && !able(member)) return;                          // it was not asked
  member.state = blank ? Sealed() : sealed;
  member.answered = true;
  if (first) return begin_first_view_if_sealed();
  if (unanswered() == 0 && leases_are_out() && !waits_for_newcomer()) begin_view();
}

std::size_t Coordinator::unanswered() const {
  return count([this](const MemberStatus& member) { return able(member) && !member.answered; });
}

/// Whether the leases of all members outside the new view have ended.
bool Coordinator::leases_are_out() const {
  if (!options_.leases) return true;
  const auto out = [&](Time end) { return now_ >= end; };
  return out(foreign_leases_end_) && std::ranges::all_of(members_, [&](const auto& entry) {
           return entry.second.answered || out(entry.second.lease_end);
         });
}

void Coordinator::drop_silent_answers() {
  std::vector<std::string> silent;
  for (const auto& [name, member] : members_) {
    if (able(member) && !member.answered) silent.push_back(name);
  }
  lose(silent, "did not answer within network.detect_timeout");
}

/// A restarted coordinator learns the layout from the trainers of the highest view that has begun. Until then
/// each answer was validated against its own layout. A member with another layout is lost, which restarts the
/// view change.
bool Coordinator::all_have_one_layout() {
  const MemberStatus* reference = nullptr;
  for (const auto& [name, member] : members_) {
    const bool counts = member.answered && trains(member);
    if (counts && (reference == nullptr || member.state.activated > reference->state.activated))
      reference = &member;
  }
  if (reference == nullptr) return layout_.has_value();
  if (!layout_) layout_ = layout_of(reference->state.layout, reference->state.chunk_elements);
  for (const auto& [name, member] : members_) {
    if (!member.answered || member.state.layout.empty() || same_layout(*layout_, member.state)) continue;
    if (trains(member) && member.state.activated == reference->state.activated) {
      end(Ended::How::diverged,
          "the fragments of " + name + " and " + reference->hello.member.name + " differ");
    } else {
      lose(name, "is lost: its fragment layout is not the same as that of " + reference->hello.member.name);
    }
    return false;
  }
  return true;
}

/// Two coordinators that do not know of each other must not both continue with a part of one view. So a
/// recovery needs more than half of the view's trainers, or half of them and the previous coordinator's
/// memory.
std::string Coordinator::reason_not_to_recover() const {
  if (!options_.recover || phase_ == Phase::joining) return {};
  ViewNumber reference = 0;
  for (const auto& [name, member] : members_) {
    if (member.answered && trains(member)) reference = std::max(reference, member.state.activated);
  }
  const auto& memory = options_.last ? options_.last : options_.before;
  std::map<std::string, std::uint64_t> of_view;  // trainers by name, with their incarnations
  const auto add = [&](const std::vector<MemberInfo>& members) {
    for (const auto& info : members) {
      if (protocol::trains(info)) of_view.insert_or_assign(info.name, info.incarnation);
    }
  };
  if (memory && memory->number >= reference) {
    reference = memory->number;
    add(memory->members);
  } else {
    for (const auto& [name, member] : members_) {
      if (member.answered && member.state.activated == reference) add(member.state.members);
    }
  }
  std::size_t here = 0;
  std::string missing, not_named;
  for (const auto& [name, incarnation] : of_view) {
    const auto place = members_.find(name);
    if (place != members_.end() && place->second.answered &&
        place->second.hello.member.incarnation == incarnation) {
      ++here;
      continue;
    }
    missing += (missing.empty() ? "" : ",") + name;
    if (!options_.given_up.contains(name)) not_named += (not_named.empty() ? "" : ",") + name;
  }
  const bool enough = 2 * here > of_view.size() || (memory && 2 * here == of_view.size());
  if (enough || not_named.empty()) return {};
  return "only " + std::to_string(here) + " of " + std::to_string(of_view.size()) + " trainers of view " +
         std::to_string(reference) + " are here (missing: " + missing +
         "), and another coordinator may be running with the others. If it has ended and they are gone for "
         "good, start this one with --recover --give-up " +
         missing + ": rounds that only they have are lost, and they must copy the state from the others";
}

void Coordinator::begin_view() {
  if (!all_have_one_layout()) return;
  std::vector<SealedMember> answers;
  for (const auto& [name, member] : members_) {
    if (member.answered) answers.push_back({member.hello.member, member.state, member.uplink});
  }
  if (auto difference = disagreement(*layout_, answers); !difference.empty())
    return end(Ended::How::diverged, difference);
  if (auto reason = reason_not_to_recover(); !reason.empty()) return suspend(reason);
  auto plan = plan_view(*layout_, answers, options_.topology);
  for (const auto& [name, reason] : plan.evicted) evict(name, reason);
  const auto trainers_in = trainers_among(plan.message.view.members);
  if (trainers_in < std::max<std::size_t>(options_.least, 1)) {
    return suspend(std::to_string(trainers_in) + " of at least " + std::to_string(options_.least) +
                   " replicas can continue");
  }
  plan.message.settings = settings_of_next_view(plan);
  announce(std::move(plan.message));
  if (phase_ == Phase::running) say("chunks: " + plan.topology);
}

void Coordinator::announce(NewView message) {
  const bool first = phase_ == Phase::joining;
  phase_ = Phase::running;
  message.view.number = number_;
  message.token = options_.token;
  message.tracks = options_.replicas;
  for (auto& [name, member] : members_) {
    member.has_nothing = false;  // from here on it is a newcomer like any other
    if (!member.answered || !(first || able(member))) continue;
    member.role = Role::member;
    missed_.erase(name);
    member.heard = now_;
    member.to_reach.clear();  // rounds of older views may have been undone
  }
  std::uint16_t next_slot = 0;
  for (std::size_t m = 0; m < message.view.members.size(); ++m) {
    auto& info = message.view.members[m];
    auto& member = members_.at(info.name);
    if (trains(member)) {
      if (first) info.slot = next_slot++;
      slots_[info.name] = member.hello.member.slot = info.slot;
    } else if (member.state.activated != message.reference || member.state.activated == 0) {
      // A reducer outside the reference begins at the run's newest rounds, regardless of its report.
      member.heartbeat.fragments.clear();
      member.state.fragments.clear();
      for (const auto& chain : message.chains) member.state.fragments.push_back(chain.back());
    }
  }
  settings_ = message.settings;
  settings_view_ = number_;
  audits_.clear();
  tell_followers();
  options_.last = LastView{number_,
                           message.view.members,
                           options_.token,
                           message.settings,
                           static_cast<std::uint64_t>(options_.detect_timeout.count()),
                           checkpoints_.complete()};
  remember(*options_.last);
  options_.recover.reset();
  gathering_until_.reset();
  goes_back_at_.reset();
  no_survivor_since_.reset();
  left_.clear();
  if (waited_for_) missed_.erase(waited_for_->first);
  waited_for_.reset();
  chains_.clear();  // rounds reported in older views may have been undone
  health_.begin(message.view, *layout_);
  paths_.begin(message.view);
  relays_.begin(message.view);
  for (auto& [connection, observer] : observers_) observer.admitted = false;  // they get new donors
  const auto reducers = message.view.members.size() - count([](const MemberStatus& member) {
                          return member.role == Role::member && trains(member);
                        });
  auto line =
      "view " + std::to_string(number_) + " begins with " +
      std::to_string(message.view.members.size() - reducers) + " replicas" +
      (reducers == 0 ? "" : " and " + std::to_string(reducers) + (reducers == 1 ? " reducer" : " reducers")) +
      (first ? "" : ": " + names(Role::member));
  actions_.push_back(Store{.view = *options_.last, .line = std::move(line)});
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member) send(member, message);
  }
  tell_relays();

  admit_waiting();
  actions_.push_back(MembersChanged{});
  if (stopping_) broadcast(Hold{});
  if (stop_step_) announce_stop_step();  // members that came back have not received it
  tell_of_checkpoint();
  settle_stop();
  settle_evaluations();
}

void Coordinator::remember(const LastView& view) {
  constexpr std::size_t kept = 16;
  auto& known = announced_[view.number];
  known.settings = view.settings;
  for (const auto& member : view.members) known.members.insert(id_of(member));
  if (announced_.size() > kept) announced_.erase(announced_.begin());
}

/// The replica comes back as a newcomer under another incarnation, because its contributions so far belong to
/// a replica that is gone. `name` is passed by value: it may be the member's key.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Coordinator::evict(std::string name, const std::string& reason) {
  const auto place = members_.find(name);
  say(name + " must copy the state from others: " + reason);
  send(place->second, Evicted{reason});
  remove(place);
}

/// A removed member may still hold a lease.
void Coordinator::remove(Members::iterator place) {
  close(place->second.connection);
  foreign_leases_end_ = std::max(foreign_leases_end_, place->second.lease_end);
  members_.erase(place);
}

std::uint16_t Coordinator::free_slot(const std::string& name) const {
  const auto taken = [&](std::uint16_t slot) {
    return std::ranges::any_of(members_, [&](const auto& entry) {
      const auto place = slots_.find(entry.first);
      return entry.first != name && place != slots_.end() && place->second == slot;
    });
  };
  if (const auto own = slots_.find(name); own != slots_.end() && !taken(own->second)) return own->second;
  std::uint16_t slot = 0;
  while (taken(slot)) ++slot;
  return slot;
}

}  // namespace isthmus::outer_sync::protocol
