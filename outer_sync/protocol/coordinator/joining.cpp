// Replicas, reducers, returning members and observers that come (docs/protocol.md, Joining and coming back).

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/forming/survivors.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// How the member joined; for the log.
std::string place_of(const MemberInfo& member) {
  return can_be_dialled(member) ? "joined from " + member.address : "joined; it opens no port";
}

}  // namespace

RunAtHello Coordinator::run_at(const Hello& hello) const {
  return {.options = options_,
          .roster = roster_,
          .announced = announced_,
          .judge = steering_.judge(),
          .bounds = bounds(),
          .first_view_forms = gathers(),
          .planned = first_view_.planned,
          .goes_back_to = first_view_.goes_back_to,
          .is_ending = ending_.has_begun(),
          .token_is_known = recovery_.token_is_known,
          .number = number_,
          .observers = observers_.others_than(hello.member.name),
          .is_observed_under_the_name = observers_.has_other(hello.member)};
}

void Coordinator::turn_away(ConnectionId from, const Verdict& verdict) {
  if (verdict.answer == Verdict::Answer::refuse) return refuse(from, verdict.text, out_);
  if (verdict.cause == Verdict::Cause::forgotten_run)
    out_.say(verdict.text);
  else
    out_.say_of_stranger(verdict.text);
  if (verdict.answer == Verdict::Answer::start_again) out_.send(from, Abort{reason_to_start_again});
  out_.close(from);  // if it retries, it trains on meanwhile
}

void Coordinator::on_hello(ConnectionId from, const Hello& hello) {
  const bool observes = hello.member.kind == MemberKind::observer;
  const auto verdict = observes ? admit_observer(hello, run_at(hello)) : admit(hello, run_at(hello));
  if (verdict.answer != Verdict::Answer::admit) return turn_away(from, verdict);
  if (observes) {
    observers_.add(from, hello, now_, out_);
    return admit_waiting();
  }
  const auto& name = hello.member.name;
  const bool trains_here = trains(hello.member);
  const bool is_new = hello.activated == 0 && hello.fresh;
  if (options_.recover && is_new && recovery_.loses_last(hello.member)) {
    recovery_.token_is_known = false;
    options_.token = recovery_.own_token;
  }
  if (trains_here && trainers() == 0 && all_may_return()) {
    // The first trainer is back after all were lost. Others may have made rounds that it lacks, and may have
    // reached the end with them.
    if (auto* gathering = std::get_if<phase::Gathering>(&phase_)) gathering->since = now_;
    if (is<phase::Suspended>() && hello.activated > 0 && !gathering_until_)
      gathering_until_ = now_ + options_.detect_timeout;
  }
  // It may be a replica on a new connection, or restarted before its old connection was seen to end.
  const auto* same = roster_.find(name);
  const bool was_able = same != nullptr && roster_.able(*same);
  if (same != nullptr) remove(name);
  losses_.at.erase(name);
  if (!options_.build.empty() && hello.build != options_.build && hello.activated == 0)
    out_.say(name + " is of build " + hello.build + ", and the coordinator of " + options_.build +
             ": their protocols and numerics are compatible");
  auto& member = roster_.add(from, hello);
  take_allowance(member);
  if (!trains_here && (gathers() || hello.activated == 0)) return join_as_reducer(member);
  if (hello.activated > 0) return come_back(member);
  if (gathers()) return join_first_view(member);
  join_late(member, was_able);
}

void Coordinator::join_first_view(MemberStatus& member) {
  const auto& info = member.hello.member;
  out_.say(info.name + " " + place_of(info) + " (" + std::to_string(trainers()) + " of " +
           std::to_string(first_view_.planned) + ")");
  std::get<phase::Gathering>(phase_).sealed = false;  // it may replace a member that had answered
  seal_first_view_if_all_are_here();
}

/// `was_member`: the view thereby loses a member.
void Coordinator::join_late(MemberStatus& member, bool was_member) {
  const auto name = member.hello.member.name;
  out_.say(name + " " + place_of(member.hello.member));
  if (is<phase::Suspended>() && options_.last &&
      has_begun_nowhere(*options_.last, roster_, first_view_.planned))
    return seal_first_view_again();
  let_copy(member);
  if (was_member) change_view(name + " was started again");
  hold_rounds_if_late(name);
  if (state_is_gone()) return begin_anew();
  if (state_is_lost()) go_back_to_checkpoints();
}

/// A reducer needs no state: it enters the first view, or causes the next one.
void Coordinator::join_as_reducer(MemberStatus& member) {
  const auto& info = member.hello.member;
  member.role = Role::ready;
  out_.say(info.name + " " + place_of(info) + ", as a reducer");
  const auto* gathering = std::get_if<phase::Gathering>(&phase_);
  if (gathering == nullptr) {
    if (roster_.able(member)) change_view(info.name + " has joined as a reducer");
    return;
  }
  if (gathering->sealed)
    return out_.send(member.connection, Seal{number_, 0});  // the others have been asked already
  seal_first_view_if_all_are_here();
}

bool Coordinator::Recovery::loses_last(const MemberInfo& info) {
  const auto place = had_state.find(info.name);
  if (place == had_state.end() || place->second >= info.incarnation) return false;
  had_state.erase(place);
  return had_state.empty();
}

void Coordinator::come_back(MemberStatus& member) {
  const auto& hello = member.hello;
  const auto& info = hello.member;
  if (gathers()) enter(phase_, phase::Suspended{});  // the first view had begun here without a report
  member.role = Role::ready;
  if (hello.done && trains(member)) begin_to_end();
  number_ = std::max({number_, hello.sealed, hello.activated});
  if (trains(member)) steering_.learn(hello.activated, hello.settings);
  if (!options_.last && trains(member)) roster_.keep_slot(info.name, info.slot);
  if (options_.recover && trains(member)) recovery_.had_state[info.name] = info.incarnation;
  if (!recovery_.token_is_known && trains(member)) {  // the first member determines which run is recovered
    options_.token = hello.token;
    recovery_.token_is_known = true;
  }
  if (!roster_.able(member)) return;  // barred: the others continue without it for a while
  const auto connection = member.connection;
  change_view(info.name + " is back");
  if (ending_.stopping && is<phase::Suspended>()) out_.send(connection, Hold{});
  admit_waiting();
}

// ---- copying the state ----

/// Trainers from which a newcomer can copy the state: it dials them. If none of them has a port, or none can
/// be reached, it tries the members that have one as bridges.
Admitted Coordinator::admission() const {
  Admitted admitted{options_.token, {}, settings(), {}};
  if (!has_survivor()) return admitted;
  const auto with_state = roster_.with_state(options_.warmup_rounds);
  std::ranges::copy_if(with_state, std::back_inserter(admitted.donors), can_be_dialled);
  for (const auto& [name, member] : roster_.members()) {
    if (member.role == Role::member && can_be_dialled(member.hello.member))
      admitted.bridges.push_back(member.hello.member);
  }
  if (admitted.donors.empty() && !admitted.bridges.empty()) admitted.donors = with_state;
  return admitted;
}

std::vector<Round> Coordinator::newest_of_donors() const {
  std::vector<Round> newest;
  for (const auto& donor : admission().donors)
    raise(newest, reported_rounds(roster_.members().at(donor.name)));
  return newest;
}

/// Lets a newcomer copy the state from the run's members, which train on.
void Coordinator::let_copy(MemberStatus& member) {
  const auto& name = member.hello.member.name;
  member.role = Role::joining;
  auto admitted = admission();
  const auto count = admitted.donors.size();
  member.admitted = count > 0;
  if (member.admitted) {
    std::string bridges;
    if (!can_be_dialled(admitted.donors.front())) {
      for (const auto& bridge : admitted.bridges) append(bridges, bridge.name);
    }
    out_.say(name + " copies the state from " + std::to_string(count) +
             (count == 1 ? " member" : " members") + (bridges.empty() ? "" : ", through " + bridges));
    return out_.send(member.connection, std::move(admitted));
  }
  std::string names;  // it waits until there is a donor
  if (has_survivor()) {
    for (const auto& other : roster_.with_state(options_.warmup_rounds)) append(names, other.name);
  }
  if (names.empty() || std::exchange(member.found_no_port, true)) return;
  out_.say(name + " waits for the state: no member that has it opens a port (" + names +
           "), and no other member does; start a reducer that opens one");
}

void Coordinator::admit_waiting() {
  if (gathers() || is<phase::Over>()) return;
  for (auto& [name, member] : roster_.members()) {
    if (member.role == Role::joining && !member.admitted) let_copy(member);
  }
  observers_.let_copy(admission(), roster_, out_);
}

void Coordinator::on_ready(MemberStatus& member) {
  if (member.role != Role::joining || !member.admitted) return;
  member.role = Role::ready;
  if (!roster_.able(member)) return;  // its calendar closes its link
  auto& missed = newcomers_.missed;
  if (missed.size() >= max_members) missed.clear();  // bounds the map
  ++missed[member.hello.member.name];
  change_view(member.hello.member.name + " is ready to take part");
}

/// If rounds follow each other faster than a newcomer can get from the copied state into a view, it finds
/// time after time that no member keeps the results that it needs. After a few tries the members therefore
/// wait for it, between a seal and its view.
void Coordinator::hold_rounds_if_late(const std::string& name) {
  constexpr std::size_t tries = 3;
  const auto missed = newcomers_.missed.find(name);
  const auto* member = roster_.find(name);
  if (missed == newcomers_.missed.end() || missed->second < tries) return;
  if (member == nullptr || !member->admitted || member->closed) return;
  if (!is<phase::Running>() && !is<phase::Changing>()) return;
  newcomers_.waited_for = {name, now_ + options_.detect_timeout};
  const auto why = name + " has been ready for " + std::to_string(missed->second) +
                   " views without entering one: the rounds wait for it, for at most network.detect_timeout";
  out_.say(why);
  if (is<phase::Running>()) change_view(why);
}

bool Coordinator::Newcomers::are_waited_for(const Roster& roster, Time now) const {
  if (!waited_for || now >= waited_for->second) return false;
  const auto* member = roster.find(waited_for->first);
  return member != nullptr && member->role == Role::joining;
}

}  // namespace isthmus::outer_sync::protocol
