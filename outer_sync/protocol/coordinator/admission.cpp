// Admission of replicas, reducers, returning members and observers (docs/protocol.md).

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// How the member joined; for the log.
std::string place_of(const MemberInfo& member) {
  return can_be_dialled(member) ? "joined from " + member.address : "joined; it opens no port";
}

}  // namespace

// ---- admission ----

std::string Coordinator::reason_of_another_run(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (!speaks_with(hello) || hello.numerics != numerics_version) {
    return "protocol/numerics versions are " + std::to_string(protocol_version) + "/" +
           std::to_string(numerics_version) + " at the coordinator and " + std::to_string(hello.protocol) +
           "/" + std::to_string(hello.numerics) + " at " + name + " (build " + hello.build +
           "); expected protocol " + std::to_string(oldest_protocol) + " to " +
           std::to_string(protocol_version) + " and the same numerics: use the same build";
  }
  if (hello.run != options_.run) return "this is run '" + options_.run + "', not '" + hello.run + "'";
  if (auto problem = problem_of(hello, bounds()); !problem.empty())
    return (name.empty() ? "a worker" : name.substr(0, 64)) + " broke the protocol: " + problem;
  if (is_operator(name)) return "'" + name + "' is reserved for operators; give the worker another name";
  if (auto difference = config::first_difference(options_.config, "the coordinator", hello.config, name);
      !difference.empty()) {
    return difference + "; all replicas must share it";
  }
  return {};
}

std::string Coordinator::reason_to_refuse(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (auto reason = reason_of_another_run(hello); !reason.empty()) return reason;
  if (hello.member.kind != MemberKind::trainer && hello.member.kind != MemberKind::reducer)
    return name + " is of member kind " + std::to_string(static_cast<unsigned>(hello.member.kind)) +
           "; expected 0 (trainer) or 1 (reducer)";
  const auto same = members_.find(name);
  if (same != members_.end() && hello.member.incarnation < same->second.hello.member.incarnation)
    return "a replica named '" + name + "' is already here; give each its own --name";
  if (!protocol::trains(hello.member)) return reason_not_to_admit(hello);
  if (auto reason = reason_of_another_model(hello); !reason.empty()) return reason;
  return reason_not_to_admit(hello);
}

std::string Coordinator::reason_of_another_model(const Hello& hello) const {
  const auto& name = hello.member.name;
  for (const auto& [other_name, member] : members_) {
    if (other_name == name || !trains(member)) continue;
    // Checked before the model: another vocabulary also makes another model, and is the cause to fix.
    if (hello.tokenizer != member.hello.tokenizer)
      return "the tokenizer of " + name + " is not the tokenizer of " + other_name;
    if (hello.model != member.hello.model) {
      return "the model of " + name + " is not the model of " + other_name +
             " (names, shapes or fragments differ)";
    }
    break;
  }
  return {};
}

std::string Coordinator::reason_not_to_admit(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (!members_.contains(name) && members_.size() >= max_members)
    return "there are " + std::to_string(max_members) + " replicas already";
  if (hello.activated > 0 && token_is_known_ && hello.token != options_.token)
    return name + " has been in another run called '" + options_.run + "'; start it again";
  if (auto problem = problem_of_report(hello.activated, hello.settings); !problem.empty())
    return name + " broke the protocol: " + problem;
  if (hello.activated > 0) return {};
  const bool reduces = !protocol::trains(hello.member);
  if (reduces && !options_.elastic)
    return name + " is a reducer, and a data-parallel run has no use for reducers";
  if (phase_ == Phase::joining) {
    if (!is_of_first_view(hello)) return {};  // it joins later by copying the state
    const auto other = std::ranges::find_if(members_, [&](const auto& entry) {
      return entry.first != name && trains(entry.second);  // not the same replica on an older connection
    });
    if (other == members_.end() || reduces || goes_back_to_) return {};
    if (hello.resume == other->second.hello.resume) return {};
    return (hello.resume ? "only " + name + " wants to resume"
                         : name + " does not want to resume, unlike the others") +
           "; all or none must";
  }
  if (!options_.elastic) return "the run has started and does not accept late joiners";
  if (ending_ || stopping_) return too_late;
  return {};
}

void Coordinator::refuse(ConnectionId connection, const std::string& reason) {
  say_of_stranger("refused a worker: " + reason);
  actions_.push_back(SendControl{connection, Refused{reason}});
  close(connection);
}

/// Views are stored before they are announced. So a claim of a later view, or of one with other members, is
/// invented or comes from another coordinator. Accepting it would undo the rounds of the members here.
std::string Coordinator::claim_of_another_view(const Hello& hello) const {
  // Limits a claim, so that enough numbers remain for later views.
  constexpr ViewNumber ahead = ViewNumber{1} << 20;
  const auto highest = std::max(hello.sealed, hello.activated);
  if (hello.activated > 0 && highest > std::max(highest_view / 2, number_ + ahead))
    return "claims to have sealed view " + std::to_string(highest) + "; the newest is " +
           std::to_string(number_);
  if (hello.activated == 0 || announced_.empty() || hello.activated < announced_.begin()->first) return {};
  const auto known = announced_.find(hello.activated);
  if (known != announced_.end() && known->second.members.contains(id_of(hello.member))) return {};
  return "claims to be in view " + std::to_string(hello.activated) +
         ", which this coordinator has not announced to it (its newest is " +
         std::to_string(announced_.rbegin()->first) +
         "); if another coordinator has, stop this one, or start it with --recover once the other has ended";
}

void Coordinator::on_hello(ConnectionId from, const Hello& hello) {
  if (hello.member.kind == MemberKind::observer) return on_observer_hello(from, hello);
  const auto& name = hello.member.name;
  if (phase_ == Phase::joining && (hello.activated > 0 || !hello.fresh) && !options_.last) {
    say(name +
        (hello.activated > 0 ? " is in view " + std::to_string(hello.activated) : " has copied the state") +
        " of this run, which this coordinator does not remember; if its disk is lost, start it with "
        "--recover");
    close(from);  // it retries, and trains on meanwhile
    return;
  }
  if (is_left_behind(hello)) return start_again(from, hello);
  if (auto reason = reason_to_refuse(hello); !reason.empty()) return refuse(from, reason);
  if (auto claim = claim_of_another_view(hello); !claim.empty()) {
    say_of_stranger(name + " " + claim);
    return close(from);  // it trains on meanwhile
  }
  if (phase_ == Phase::joining && !is_of_first_view(hello)) {
    say_of_stranger(name + " waits until the run has begun, and joins then");
    return close(from);  // it retries
  }
  if (hello.activated == 0 && hello.fresh) forget_state_before(hello.member);
  if (protocol::trains(hello.member) && trainers() == 0 && all_may_return()) handle_all_out(hello);
  const bool was_member = take_over_from(hello);
  lost_at_.erase(name);
  if (!options_.build.empty() && hello.build != options_.build && hello.activated == 0)
    say(name + " is of build " + hello.build + ", and the coordinator of " + options_.build +
        ": their protocols and numerics are compatible");
  auto& member = members_[name];
  member.connection = from;
  member.hello = hello;
  member.heard = now_;
  member.uplink = hello.uplink;
  if (!trains(member) && (phase_ == Phase::joining || hello.activated == 0)) return join_as_reducer(member);
  if (hello.activated > 0) {
    if (phase_ == Phase::joining)
      phase_ = Phase::suspended;  // the first view had begun at this member without a report
    member.role = Role::ready;
    if (hello.done && trains(member)) begin_to_end();
    return come_back(member);
  }
  if (phase_ != Phase::joining) {
    say(name + " " + place_of(hello.member));
    if (nobody_has_begun()) return seal_first_view_again();
    admit(member);
    if (was_member) change_view(name + " was started again");
    hold_rounds_if_late(name);
    if (state_is_gone()) return begin_anew();
    if (state_is_lost()) go_back_to_checkpoints();
    return;
  }
  say(name + " " + place_of(hello.member) + " (" + std::to_string(trainers()) + " of " +
      std::to_string(planned_) + ")");
  first_sealed_ = false;  // it may replace a member that had answered
  seal_first_view_if_all_are_here();
}

/// The first trainer is back after all were lost. Others may have made rounds that it lacks, and may have
/// reached the end with them.
void Coordinator::handle_all_out(const Hello& first) {
  if (phase_ == Phase::joining) started_ = now_;
  if (phase_ == Phase::suspended && first.activated > 0 && !gathering_until_)
    gathering_until_ = now_ + options_.detect_timeout;
}

/// Whether the replica is in the first view, which has the planned number of trainers. After a return to
/// checkpoints these must have the chosen checkpoint.
bool Coordinator::is_of_first_view(const Hello& hello) const {
  if (hello.activated > 0 || !protocol::trains(hello.member)) return true;
  const auto& theirs = hello.checkpoints;
  const bool has_it = goes_back_to_ && hello.resume && hello.fresh &&
                      std::ranges::find(theirs, *goes_back_to_) != theirs.end();
  if (goes_back_to_ && !has_it) return false;
  return members_.contains(hello.member.name) || trainers() < planned_;
}

/// A reducer needs no state: it enters the first view, or causes the next one.
void Coordinator::join_as_reducer(MemberStatus& member) {
  const auto& info = member.hello.member;
  member.role = Role::ready;
  say(info.name + " " + place_of(info) + ", as a reducer");
  if (phase_ != Phase::joining) return change_view(info.name + " has joined as a reducer");
  if (first_sealed_) return send(member, Seal{number_, 0});  // the others have been asked already
  seal_first_view_if_all_are_here();
}

/// The replica was restarted. During a recovery it may have been the last that could bring the run's state.
void Coordinator::forget_state_before(const MemberInfo& info) {
  const auto place = had_state_.find(info.name);
  if (!options_.recover || place == had_state_.end() || place->second >= info.incarnation) return;
  had_state_.erase(place);
  if (!had_state_.empty()) return;
  token_is_known_ = false;
  options_.token = own_token_;
}

/// The first view was announced but has begun at no member: all its trainers are here, without a view.
bool Coordinator::nobody_has_begun() const {
  if (phase_ != Phase::suspended || !options_.last) return false;
  const auto& last = options_.last->members;
  if (trainers_among(last) != planned_) return false;
  return std::ranges::all_of(last, [&](const MemberInfo& info) {
    if (!protocol::trains(info)) return true;
    const auto place = members_.find(info.name);
    return place != members_.end() && begun(place->second) == 0 &&
           place->second.hello.member.incarnation == info.incarnation;
  });
}

/// Removes other trainers; they retry, and join once the run has begun.
void Coordinator::seal_first_view_again() {
  std::vector<std::string> others;
  const auto& of_it = options_.last->members;
  for (const auto& [name, member] : members_) {
    if (trains(member) && std::ranges::find(of_it, name, &MemberInfo::name) == of_it.end())
      others.push_back(name);
  }
  for (const auto& name : others) remove(members_.find(name));
  phase_ = Phase::joining;
  seal_first_view();
}

/// An operator recovers the run, and no member present has begun it.
bool Coordinator::state_is_gone() const {
  return phase_ == Phase::suspended && options_.recover && !token_is_known_ && !gathering_until_;
}

/// Begins the run anew under its own token, once enough newly started replicas are here. Members left from
/// the old run are then refused, and must restart.
void Coordinator::begin_anew() {
  const auto is_fresh = [](const MemberStatus& member) {
    return trains(member) && member.hello.fresh && !member.admitted;
  };
  const auto resumes = [](const MemberStatus& member) { return trains(member) && member.hello.resume; };
  const bool all_or_none = count(resumes) == 0 || count(resumes) == trainers();
  if (trainers() != options_.replicas || count(is_fresh) != trainers() || !all_or_none) {
    std::string stale;
    for (const auto& [name, member] : members_) {
      if (trains(member) && !is_fresh(member)) stale += " " + name;
    }
    return suspend("no replica here has begun this run; it begins anew when exactly " +
                   std::to_string(options_.replicas) +
                   " newly started replicas are here, all or none of them with --resume" +
                   (stale.empty() ? "" : "; start again:" + stale));
  }
  std::vector<std::string> of_old;  // reducers of the old run; they come back without state
  for (const auto& [name, member] : members_) {
    if (begun(member) > 0) of_old.push_back(name);
  }
  for (const auto& name : of_old) evict(name, "the run begins anew");
  say("no replica here has begun this run: it begins anew");
  token_is_known_ = true;
  phase_ = Phase::joining;
  seal_first_view();
}

/// The same replica on a new connection, or restarted before its old connection was seen to end. Returns true
/// if the view thereby loses a member.
bool Coordinator::take_over_from(const Hello& hello) {
  const auto place = members_.find(hello.member.name);
  if (place == members_.end()) return false;
  const bool was_able = able(place->second);
  remove(place);
  return was_able;
}

void Coordinator::come_back(MemberStatus& member) {
  const auto& hello = member.hello;
  number_ = std::max({number_, hello.sealed, hello.activated});
  if (hello.activated > settings_view_ && trains(member)) {
    settings_view_ = hello.activated;
    settings_ = hello.settings;
  }
  if (!options_.last && trains(member)) slots_[hello.member.name] = hello.member.slot;
  if (options_.recover && trains(member)) had_state_[hello.member.name] = hello.member.incarnation;
  if (!token_is_known_ && trains(member)) {  // the first member determines which run is recovered
    options_.token = hello.token;
    token_is_known_ = true;
  }
  if (!able(member)) return;  // barred: the others continue without it for a while
  change_view(hello.member.name + " is back");
  if (stopping_ && phase_ == Phase::suspended) send(member, Hold{});
  admit_waiting();
}

/// Trainers that have the run's state: of those present, the ones for which the highest view has begun.
std::vector<MemberInfo> Coordinator::who_has_the_state() const {
  ViewNumber highest = 0;
  for (const auto& [name, member] : members_) {
    if (able(member) && trains(member)) highest = std::max(highest, begun(member));
  }
  std::vector<MemberInfo> out;
  if (!has_survivor()) return out;
  for (const auto& [name, member] : members_) {
    const bool current =
        member.role == Role::member || (highest > 0 && able(member) && begun(member) == highest);
    if (current && trains(member) && is_past_warmup(member)) out.push_back(member.hello.member);
  }
  return out;
}

/// Trainers from which a newcomer can copy the state: it dials them.
std::vector<MemberInfo> Coordinator::donors() const {
  auto donors = who_has_the_state();
  std::erase_if(donors, [](const MemberInfo& member) { return !can_be_dialled(member); });
  return donors;
}

/// During the warm-up there is more to copy than the global parameters.
bool Coordinator::is_past_warmup(const MemberStatus& member) const {
  const auto& fragments = member.heartbeat.fragments;
  return options_.warmup_rounds == 0 ||
         (!fragments.empty() && std::ranges::all_of(fragments, [&](const auto& fragment) {
           return fragment.first >= options_.warmup_rounds;
         }));
}

/// Lets a newcomer copy the state from the run's members, which train on.
void Coordinator::admit(MemberStatus& member) {
  member.role = Role::joining;
  auto admitted = admission();
  member.admitted = !admitted.donors.empty();
  if (!member.admitted) return say_if_nobody_can_be_dialled(member);  // until there is a donor
  say(member.hello.member.name + " copies the state from " + std::to_string(admitted.donors.size()) +
      (admitted.donors.size() == 1 ? " member" : " members"));
  send(member, std::move(admitted));
}

void Coordinator::say_if_nobody_can_be_dialled(MemberStatus& newcomer) {
  std::string names;
  for (const auto& member : who_has_the_state()) names += (names.empty() ? "" : ", ") + member.name;
  if (names.empty() || std::exchange(newcomer.found_no_port, true)) return;
  say(newcomer.hello.member.name + " waits for the state: no member that has it opens a port (" + names +
      "); stop the run and resume it with a port at one of them");
}

/// If rounds follow each other faster than a newcomer can get from the copied state into a view, it finds
/// time after time that no member keeps the results that it needs. After a few tries the members therefore
/// wait for it, between a seal and its view.
void Coordinator::hold_rounds_if_late(const std::string& name) {
  constexpr std::size_t tries = 3;
  const auto missed = missed_.find(name);
  const auto member = members_.find(name);
  if (missed == missed_.end() || missed->second < tries) return;
  if (member == members_.end() || !member->second.admitted) return;
  if (phase_ != Phase::running && phase_ != Phase::changing) return;
  waited_for_ = {name, now_ + options_.detect_timeout};
  const auto why = name + " has been ready for " + std::to_string(missed->second) +
                   " views without entering one: the rounds wait for it, for at most network.detect_timeout";
  say(why);
  if (phase_ == Phase::running) change_view(why);
}

bool Coordinator::waits_for_newcomer() const {
  if (!waited_for_ || now_ >= waited_for_->second) return false;
  const auto place = members_.find(waited_for_->first);
  return place != members_.end() && place->second.role == Role::joining;
}

Admitted Coordinator::admission() const { return {options_.token, donors(), settings_}; }

void Coordinator::admit_waiting() {
  for (auto& [name, member] : members_) {
    if (member.role == Role::joining && !member.admitted && phase_ != Phase::joining) admit(member);
  }
  admit_observers();
}

// ---- observers ----

std::string Coordinator::reason_to_refuse_observer(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (members_.contains(name))
    return "a replica named '" + name + "' is already here; give the observer another --name";
  if (!options_.elastic) return "a data-parallel run has no rounds to follow";
  if (observers_.size() >= max_observers)
    return "there are " + std::to_string(max_observers) + " observers already";
  return reason_of_another_model(hello);
}

void Coordinator::on_observer_hello(ConnectionId from, const Hello& hello) {
  if (auto reason = reason_of_another_run(hello); !reason.empty()) return refuse(from, reason);
  const auto same = std::ranges::find_if(
      observers_, [&](const auto& entry) { return entry.second.hello.member.name == hello.member.name; });
  if (same != observers_.end()) drop_observer(same, "has reconnected");
  if (auto reason = reason_to_refuse_observer(hello); !reason.empty()) return refuse(from, reason);
  say(hello.member.name + " observes the run");
  observers_[from] = {.hello = hello, .heard = now_};
  admit_observers();
}

/// Checks the model again: when the observer came, no member may have reported it.
void Coordinator::admit_observers() {
  if (phase_ == Phase::joining || phase_ == Phase::ended) return;
  for (auto at = observers_.begin(); at != observers_.end();) {
    const auto observer = at++;
    if (observer->second.admitted) continue;
    const auto connection = observer->first;
    if (auto reason = reason_of_another_model(observer->second.hello); !reason.empty()) {
      observers_.erase(observer);
      refuse(connection, reason);
      continue;
    }
    auto admitted = admission();
    if (admitted.donors.empty()) return;  // it is admitted as soon as there is a donor
    observer->second.admitted = true;
    actions_.push_back(SendControl{connection, std::move(admitted)});
  }
}

void Coordinator::on_observer(Observers::iterator observer, const ControlMessage& message) {
  observer->second.heard = now_;
  if (const auto problem = problem_of_message(message, bounds()); !problem.empty())
    return drop_observer(observer, "broke the protocol: " + problem);
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    on_observer_heartbeat(observer, *heartbeat);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    drop_observer(observer, "left: " + leave->reason);
  } else {
    drop_observer(observer, "sent a message that observers do not send");
  }
}

/// An observer that has followed rounds that were undone must copy the state again.
void Coordinator::on_observer_heartbeat(Observers::iterator observer, const Heartbeat& heartbeat) {
  const auto connection = observer->first;
  if (const auto conflict = chains_.first_other(heartbeat.fragments)) {
    const auto reason = "its chain hash at round " + std::to_string(conflict->round) + " of fragment " +
                        std::to_string(conflict->fragment) + " is not the run's";
    actions_.push_back(SendControl{connection, Evicted{reason}});
    return drop_observer(observer, "must copy the state again: " + reason);
  }
  actions_.push_back(SendControl{connection, HeartbeatReply{0, heartbeat.number, {}, newest_of_donors()}});
}

void Coordinator::drop_observer(Observers::iterator observer, const std::string& why) {
  say(observer->second.hello.member.name + ", an observer, " + why);
  close(observer->first);
  observers_.erase(observer);
}

bool Coordinator::somebody_joins() const {
  return count([](const MemberStatus& member) {
           return member.role == Role::ready || (member.role == Role::joining && member.admitted);
         }) > 0;
}

bool Coordinator::able(const MemberStatus& member) const {
  if (member.role != Role::member && member.role != Role::ready) return false;
  return !bars_.contains(member.hello.member.name, now_);
}

}  // namespace isthmus::outer_sync::protocol
