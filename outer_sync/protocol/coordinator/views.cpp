// The first view, and changes from one view to the next (docs/protocol.md).

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "protocol/coordinator/forming/forming.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// The line of a view for the log.
std::string line_of(const NewView& message, const Roster& roster, bool first) {
  const auto trainers_in = trainers_among(message.view.members);
  const auto reducers = message.view.members.size() - trainers_in;
  return "view " + std::to_string(message.view.number) + " begins with " + std::to_string(trainers_in) +
         " replicas" +
         (reducers == 0 ? ""
                        : " and " + std::to_string(reducers) + (reducers == 1 ? " reducer" : " reducers")) +
         (first ? "" : ": " + roster.names_in_view());
}

/// Enters the view in the members' records. The first view deals the slots.
void enter_members(NewView& message, Roster& roster, Time now, bool first) {
  for (auto& [name, member] : roster.members()) {
    member.has_nothing = false;  // from here on it is a newcomer like any other
    if (!member.answered || !(first || roster.able(member))) continue;
    member.role = MemberStatus::Role::member;
    member.heard = now;
    member.to_reach.clear();  // rounds of older views may have been undone
  }
  std::uint16_t next_slot = 0;
  for (auto& info : message.view.members) {
    auto& member = roster.members().at(info.name);
    if (trains(member)) {
      if (first) info.slot = next_slot++;
      member.hello.member.slot = info.slot;
      roster.keep_slot(info.name, info.slot);
    } else if (member.state.activated != message.reference || member.state.activated == 0) {
      // A reducer outside the reference begins at the run's newest rounds, regardless of its report.
      member.heartbeat.fragments.clear();
      member.state.fragments.clear();
      for (const auto& chain : message.chains) member.state.fragments.push_back(chain.back());
    }
  }
}

}  // namespace

// ---- the first view ----

/// Waits a moment for reducers: a reducer that comes later would cost a view change.
void Coordinator::seal_first_view_if_all_are_here() {
  auto* gathering = std::get_if<phase::Gathering>(&phase_);
  if (gathering == nullptr || gathering->sealed || trainers() != first_view_.planned) return;
  if (!gathering->all_here_since) gathering->all_here_since = now_;
  const auto reducers = members().size() - trainers();
  if (reducers >= options_.reducers || now_ - *gathering->all_here_since > options_.detect_timeout)
    seal_first_view();
}

void Coordinator::seal_first_view() {
  std::get<phase::Gathering>(phase_).sealed = true;
  const auto beginning = choose_beginning(roster_, options_, first_view_.goes_back_to);
  if (beginning.problem) return end(Ended::How::failed, *beginning.problem);
  // A replica restores a checkpoint only once. If another replica has replaced a lost one, trainers that were
  // ordered to restore another checkpoint must therefore restart.
  std::vector<std::string> others;
  for (auto& [name, member] : roster_.members()) {
    member.has_nothing = beginning.without.contains(name);
    if (trains(member) && member.begins_at && (*member.begins_at != beginning.step || member.has_nothing))
      others.push_back(name);
  }
  constexpr auto reason = "the run begins at another checkpoint now; start again, with --resume";
  for (const auto& name : others) out_.send(members().at(name).connection, Abort{reason});
  if (!others.empty()) return lose(others, "starts again: the run begins at another checkpoint now");
  resumed_from_ = beginning.step;
  checkpoints_.begin_with(beginning.step);
  if (beginning.step > 0) out_.say("resuming from the checkpoint of step " + std::to_string(beginning.step));
  ++number_;
  for (auto& [name, member] : roster_.members()) {
    member.answered = false;
    if (!member.has_nothing) {
      member.begins_at = beginning.step;
      out_.send(member.connection, Seal{number_, beginning.step});
      continue;
    }
    out_.say(copies_without_checkpoint(name, beginning.step));
  }
}

/// A member may have been lost since the seal: the first view needs all trainers, but only the reducers that
/// are here. An earlier first view may have begun at some of these members without a report. No round was
/// committed in it: while there are too few members for a view without the rest, no chunk closes without the
/// rest either.
void Coordinator::begin_first_view_if_sealed() {
  if (!std::get<phase::Gathering>(phase_).sealed || trainers() != first_view_.planned) return;
  const auto is_missing = [](const MemberStatus& member) { return !member.answered && !member.has_nothing; };
  if (roster_.count(is_missing) > 0) return;
  if (auto difference = initial_disagreement(roster_); !difference.empty())
    return end(Ended::How::diverged, difference);
  const auto& first = roster_.first_trainer()->state;
  if (auto problem = steering_.judge().problem_of(first.settings); !problem.empty())
    return end(Ended::How::failed, "the checkpoints contain " + problem +
                                       "; correct the config, or resume from earlier checkpoints");
  layout_ = layout_of(first.layout, first.chunk_elements);
  begin_view();
}

/// The first view has begun at no member. Removes other trainers; they retry, and join once the run has
/// begun.
void Coordinator::seal_first_view_again() {
  std::vector<std::string> others;
  const auto& of_it = options_.last->members;
  for (const auto& [name, member] : members()) {
    if (trains(member) && std::ranges::find(of_it, name, &MemberInfo::name) == of_it.end())
      others.push_back(name);
  }
  for (const auto& name : others) remove(name);
  enter(phase_, phase::Gathering{.since = now_, .all_here_since = now_});
  seal_first_view();
}

/// Begins the run anew under its own token, once enough newly started replicas are here. Members left from
/// the old run are then refused, and must restart.
void Coordinator::begin_anew() {
  const auto is_fresh = [](const MemberStatus& member) {
    return trains(member) && member.hello.fresh && !member.admitted;
  };
  const auto resuming =
      roster_.count([](const MemberStatus& member) { return trains(member) && member.hello.resume; });
  const bool all_or_none = resuming == 0 || resuming == trainers();
  if (trainers() != options_.replicas || roster_.count(is_fresh) != trainers() || !all_or_none) {
    std::string stale;
    for (const auto& [name, member] : members()) {
      if (trains(member) && !is_fresh(member)) stale += " " + name;
    }
    return suspend({.cause = phase::Obstacle::Cause::begins_anew,
                    .names = stale,
                    .number = 0,
                    .text = "no replica here has begun this run; it begins anew when exactly " +
                            std::to_string(options_.replicas) +
                            " newly started replicas are here, all or none of them with --resume" +
                            (stale.empty() ? "" : "; start again:" + stale)});
  }
  std::vector<std::string> of_old;  // reducers of the old run; they come back without state
  for (const auto& [name, member] : members()) {
    if (begun(member) > 0) of_old.push_back(name);
  }
  for (const auto& name : of_old) evict(name, "the run begins anew");
  out_.say("no replica here has begun this run: it begins anew");
  recovery_.token_is_known = true;
  enter(phase_, phase::Gathering{.since = now_, .all_here_since = now_});
  seal_first_view();
}

// ---- view changes ----

/// Members that cannot be reached are left out. From here on no round commits in older views.
void Coordinator::change_view(const std::string& why) {
  if (gathers() || is<phase::Over>()) return;
  if (ending_.at_last_step) finish_if_all_done();
  if (is<phase::Over>()) return;
  if (!options_.elastic) return end(Ended::How::failed, why);
  using Cause = phase::Obstacle::Cause;
  if (expects_more()) {
    // The view that was about to begin may have lost the only member that knows the run's last rounds.
    if (is<phase::Changing>())
      suspend(
          {.cause = Cause::waits_for_last_view, .text = why + "; waiting for the members of the last view"});
    return;
  }
  if (const auto here = roster_.able_trainers(); here < options_.min_replicas()) {
    return suspend({.cause = Cause::too_few,
                    .number = here,
                    .text = why + "; " + std::to_string(here) + " of at least " +
                            std::to_string(options_.least) + " replicas are here"});
  }
  if (!has_survivor()) return suspend(reason_without_survivor(options_, checkpoints_.complete()));
  if (options_.last && !options_.recover) {
    if (const auto missing = missing_survivors(*options_.last, roster_, losses_.left, options_.least);
        !missing.empty()) {
      return suspend(
          {.cause = Cause::too_few_survivors,
           .names = missing,
           .number = options_.last->number,
           .text = "fewer than half of the trainers of view " + std::to_string(options_.last->number) +
                   " are here, and another coordinator may be running with the others; waiting for " +
                   missing + "; if they are gone for good, start the coordinator with --recover --give-up " +
                   missing});
    }
  }
  enter(phase_, phase::Changing{now_});
  ++number_;
  for (auto& [name, member] : roster_.members()) {
    member.answered = false;
    if (roster_.able(member) && trains(member)) member.hello.member.slot = roster_.claim_slot(name);
  }
  for (const auto& [name, member] : members()) {
    if (roster_.able(member)) out_.send(member.connection, Seal{number_, 0});
  }
}

/// A restarted coordinator waits for its members before it forms a view. They keep committing in theirs, and
/// a member left out because it came a moment late would have to copy the state.
bool Coordinator::expects_more() const {
  if (!gathering_until_ || now_ >= *gathering_until_) return false;
  return !options_.last || options_.recover || !all_are_here(*options_.last, roster_, losses_.left);
}

/// Whether a trainer of the view announced last is here: then rounds that only these trainers know are not
/// lost.
bool Coordinator::has_survivor() const {
  return !options_.last || options_.recover || protocol::has_survivor(*options_.last, roster_);
}

void Coordinator::suspend(phase::Obstacle why) {
  const auto* suspended = std::get_if<phase::Suspended>(&phase_);
  const auto text = why.text;
  if (suspended == nullptr || !why.is_same_as(suspended->because)) out_.say("rounds do not commit: " + text);
  enter(phase_, phase::Suspended{.because = std::move(why)});
  for (auto& [name, member] : roster_.members()) {
    if (member.role == Role::member) member.role = Role::ready;
  }
  broadcast(Suspended{text});
  steering_.drop("rounds do not commit: " + text, out_);
  out_.add(MembersChanged{});
  admit_waiting();
}

void Coordinator::on_sealed(MemberStatus& member, const Sealed& sealed) {
  if (sealed.view != number_) return;
  const bool first = gathers();
  if (!first && !is<phase::Changing>()) return;
  const bool blank = !trains(member) && sealed.activated == 0;  // it knows nothing of the run yet
  if (!first && !roster_.able(member)) return;                  // it was not asked
  member.state = blank ? Sealed() : sealed;
  member.answered = true;
  if (first) return begin_first_view_if_sealed();
  if (may_begin_view()) begin_view();
}

/// All have answered, and no member outside the new view may still close chunks.
bool Coordinator::may_begin_view() const {
  const bool leases_are_out = !options_.leases || roster_.leases_are_out();
  if (roster_.unanswered() == 0 && leases_are_out) return !newcomers_.are_waited_for(roster_, now_);
  return false;
}

/// A member with another layout is lost, which restarts the view change.
void Coordinator::begin_view() {
  if (const auto other = settle_layout(layout_, roster_)) {
    if (other->diverged)
      return end(Ended::How::diverged,
                 "the fragments of " + other->name + " and " + other->reference + " differ");
    return lose({other->name}, "is lost: its fragment layout is not the same as that of " + other->reference);
  }
  if (!layout_) return;
  auto planned = plan_next_view(*layout_, roster_, options_.topology, reports_.paths.limits());
  if (const auto* diverged = std::get_if<Diverged>(&planned)) return end(Ended::How::diverged, diverged->how);
  if (options_.recover && !gathers()) {
    if (auto reason = reason_not_to_recover(options_, roster_)) return suspend(std::move(*reason));
  }
  auto& plan = std::get<ViewPlan>(planned);
  for (const auto& [name, reason] : plan.evicted) evict(name, reason);
  const auto trainers_in = trainers_among(plan.message.view.members);
  if (trainers_in < options_.min_replicas()) {
    return suspend({.cause = phase::Obstacle::Cause::too_few,
                    .number = trainers_in,
                    .text = std::to_string(trainers_in) + " of at least " + std::to_string(options_.least) +
                            " replicas can continue"});
  }
  const auto reach = gathers() ? resumed_from_ : reach_of_answers(roster_);  // no step was made since then
  plan.message.settings =
      steering_.settings_of_view(plan.message.settings, number_, reach, options_.steps, out_);
  announce(std::move(plan.message));
  if (is<phase::Running>()) out_.say("chunks: " + plan.topology);
}

void Coordinator::announce(NewView message) {
  const bool first = gathers();
  message.view.number = number_;
  message.token = options_.token;
  message.tracks = options_.replicas;
  enter_members(message, roster_, now_, first);
  enter(phase_, phase::Running{});
  steering_.learn(number_, message.settings);
  for (const auto& [name, member] : members()) {  // newcomers follow rounds under these settings
    if (member.role == Role::joining && member.admitted) out_.send(member.connection, Steered{settings()});
  }
  observers_.begin_view(settings(), out_);
  options_.last = LastView{number_,
                           message.view.members,
                           options_.token,
                           message.settings,
                           static_cast<std::uint64_t>(options_.detect_timeout.count()),
                           checkpoints_.complete()};
  announced_.add(*options_.last);
  options_.recover.reset();
  gathering_until_.reset();
  losses_.left.clear();
  for (const auto& info : message.view.members) newcomers_.missed.erase(info.name);
  if (newcomers_.waited_for) newcomers_.missed.erase(newcomers_.waited_for->first);
  newcomers_.waited_for.reset();
  reports_.begin(message.view, *layout_);
  auto line = line_of(message, roster_, first);
  out_.add(Store{.view = *options_.last, .line = std::move(line)});
  for (const auto& [name, member] : members()) {
    if (member.role == Role::member) out_.send(member.connection, message);
  }
  reports_.tell_relays(roster_, out_);
  admit_waiting();
  out_.add(MembersChanged{});
  if (ending_.stopping) broadcast(Hold{});
  // Members that came back have not received these.
  if (ending_.stop_step) send_to_trainers(StopAt{*ending_.stop_step});
  if (checkpoints_.is_open()) send_to_trainers(CheckpointAt{checkpoints_.ordered()});
  settle_stop();
  settle_evaluations();
}

}  // namespace isthmus::outer_sync::protocol
