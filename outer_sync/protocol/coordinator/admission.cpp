// Who comes in: as a replica, to reduce, to take part again, or to look on (docs/protocol.md).

#include <algorithm>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

/// For people.
std::string place_of(const MemberInfo& member) {
  return can_be_dialled(member) ? "joined from " + member.address : "joined; it opens no port";
}

}  // namespace

// ---- who comes in ----

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
  if (is_operator(name)) return "'" + name + "' is a name of who steers the run; give the worker another one";
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
    return name + " is of kind " + std::to_string(static_cast<unsigned>(hello.member.kind)) +
           ", of which there are no members";
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
    // Before the model: another vocabulary makes another model, and is what can be mended.
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
    return name + " has been in another run that is called '" + options_.run + "'; start it again";
  if (auto problem = problem_of_report(hello.activated, hello.settings); !problem.empty())
    return name + " broke the protocol: " + problem;
  if (hello.activated > 0) return {};
  const bool reduces = !protocol::trains(hello.member);
  if (reduces && !options_.elastic)
    return name + " only reduces: in a data-parallel run there is nothing to reduce for it";
  if (phase_ == Phase::joining) {
    if (!is_of_first_view(hello)) return {};  // it comes in later, with the others' state
    const auto other = std::ranges::find_if(members_, [&](const auto& entry) {
      return entry.first != name && trains(entry.second);  // not its former self
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

/// What is announced is remembered first. So a later view, or one with others in it, is made up, or of
/// another coordinator; taken for this run's it would undo what the members here have made.
std::string Coordinator::claim_of_another_view(const Hello& hello) const {
  // So far that no claim leaves too few numbers for the views to come.
  constexpr ViewNumber ahead = ViewNumber{1} << 20;
  const auto highest = std::max(hello.sealed, hello.activated);
  if (hello.activated > 0 && highest > std::max(highest_view / 2, number_ + ahead))
    return "claims to have sealed view " + std::to_string(highest) + "; the newest is " +
           std::to_string(number_);
  if (hello.activated == 0 || announced_.empty() || hello.activated < announced_.begin()->first) return {};
  const auto known = announced_.find(hello.activated);
  if (known != announced_.end() && known->second.members.contains(id_of(hello.member))) return {};
  return "says that it is in view " + std::to_string(hello.activated) +
         ", which this coordinator has not announced to it (its newest is " +
         std::to_string(announced_.rbegin()->first) +
         "); if another coordinator has, stop this one, or start it with --recover once the other has ended";
}

void Coordinator::on_hello(ConnectionId from, const Hello& hello) {
  if (hello.member.kind == MemberKind::observer) return on_observer_hello(from, hello);
  const auto& name = hello.member.name;
  if (phase_ == Phase::joining && (hello.activated > 0 || !hello.fresh) && !options_.last) {
    say(name +
        (hello.activated > 0 ? " is in view " + std::to_string(hello.activated) : " has taken the state") +
        " of this run, which this coordinator does not remember; if its disk is lost, start it with "
        "--recover");
    close(from);  // it asks again, and trains on meanwhile
    return;
  }
  if (is_left_behind(hello)) return start_again(from, hello);
  if (auto reason = reason_to_refuse(hello); !reason.empty()) return refuse(from, reason);
  if (auto claim = claim_of_another_view(hello); !claim.empty()) {
    say_of_stranger(name + " " + claim);
    return close(from);  // it trains on meanwhile
  }
  if (phase_ == Phase::joining && !is_of_first_view(hello)) {
    say_of_stranger(name + " waits until the run has begun, and comes in then");
    return close(from);  // it asks again
  }
  if (hello.activated == 0 && hello.fresh) forget_state_before(hello.member);
  if (protocol::trains(hello.member) && trainers() == 0 && all_may_return()) handle_all_out(hello);
  const bool was_member = take_over_from(hello);
  lost_at_.erase(name);
  if (!options_.build.empty() && hello.build != options_.build && hello.activated == 0)
    say(name + " is of build " + hello.build + ", and the coordinator of " + options_.build +
        ": they speak the same protocol and compute alike");
  auto& member = members_[name];
  member.connection = from;
  member.hello = hello;
  member.heard = now_;
  member.uplink = hello.uplink;
  if (!trains(member) && (phase_ == Phase::joining || hello.activated == 0)) return join_as_reducer(member);
  if (hello.activated > 0) {
    if (phase_ == Phase::joining)
      phase_ = Phase::suspended;  // the first view had begun somewhere, unheard of
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
  first_sealed_ = false;  // it may have come in the place of one that had answered
  seal_first_view_if_all_are_here();
}

/// After all were lost, the first one is back. The others may have made rounds that it has not heard of, and
/// may have come to the end with it.
void Coordinator::handle_all_out(const Hello& first) {
  if (phase_ == Phase::joining) started_ = now_;
  if (phase_ == Phase::suspended && first.activated > 0 && !gathering_until_)
    gathering_until_ = now_ + options_.detect_timeout;
}

/// That has as many trainers as were planned. If the run goes back to its checkpoints, they have some.
bool Coordinator::is_of_first_view(const Hello& hello) const {
  if (hello.activated > 0 || !protocol::trains(hello.member)) return true;
  const auto& theirs = hello.checkpoints;
  const bool has_it = goes_back_to_ && hello.resume && hello.fresh &&
                      std::ranges::find(theirs, *goes_back_to_) != theirs.end();
  if (goes_back_to_ && !has_it) return false;
  return members_.contains(hello.member.name) || trainers() < planned_;
}

/// It needs no state, so it is in the first view, or in the next one, which it causes.
void Coordinator::join_as_reducer(MemberStatus& member) {
  const auto& info = member.hello.member;
  member.role = Role::ready;
  say(info.name + " " + place_of(info) + ", to reduce");
  if (phase_ != Phase::joining) return change_view(info.name + " is there to reduce");
  if (first_sealed_) return send(member, Seal{number_, 0});  // as the others were
  seal_first_view_if_all_are_here();
}

/// It was started again. While a run is recovered it may be the last who could have brought the run's state.
void Coordinator::forget_state_before(const MemberInfo& info) {
  const auto place = had_state_.find(info.name);
  if (!options_.recover || place == had_state_.end() || place->second >= info.incarnation) return;
  had_state_.erase(place);
  if (!had_state_.empty()) return;
  token_is_known_ = false;
  options_.token = own_token_;
}

/// The first view was announced and reached nobody: all trainers that it was for are here, and fresh.
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

/// The other trainers ask again, and come in once the run has begun.
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

/// An operator recovers a run, and nobody who has begun it has come.
bool Coordinator::state_is_gone() const {
  return phase_ == Phase::suspended && options_.recover && !token_is_known_ && !gathering_until_;
}

/// Once there are enough who have just been started, with a token of its own: whoever is left of the old run
/// is told to start again.
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
    return suspend("nobody who is here has begun this run; it begins anew when exactly " +
                   std::to_string(options_.replicas) +
                   " replicas are here that have just been started, all or "
                   "none of them with --resume" +
                   (stale.empty() ? "" : "; start again:" + stale));
  }
  std::vector<std::string> of_old;  // who only reduces may be left of it, and comes again with nothing
  for (const auto& [name, member] : members_) {
    if (begun(member) > 0) of_old.push_back(name);
  }
  for (const auto& name : of_old) evict(name, "the run begins anew");
  say("nobody who is here has begun this run: it begins anew");
  token_is_known_ = true;
  phase_ = Phase::joining;
  seal_first_view();
}

/// The same replica on a new connection, or started anew before its old connection was seen to end. True if
/// that leaves the view without one of its members.
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
  if (!token_is_known_ && trains(member)) {  // the first to come says which run is recovered
    options_.token = hello.token;
    token_is_known_ = true;
  }
  if (!able(member)) return;  // barred for a while: the others go on without it until then
  change_view(hello.member.name + " is back");
  if (stopping_ && phase_ == Phase::suspended) send(member, Hold{});
  admit_waiting();
}

/// Whose state the run is at: of all trainers that are here, those in whom the highest view has begun.
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

/// Whose state a newcomer may take: it dials them.
std::vector<MemberInfo> Coordinator::donors() const {
  auto donors = who_has_the_state();
  std::erase_if(donors, [](const MemberInfo& member) { return !can_be_dialled(member); });
  return donors;
}

/// In the warm-up there is more to take over than global parameters.
bool Coordinator::is_past_warmup(const MemberStatus& member) const {
  const auto& fragments = member.heartbeat.fragments;
  return options_.warmup_rounds == 0 ||
         (!fragments.empty() && std::ranges::all_of(fragments, [&](const auto& fragment) {
           return fragment.first >= options_.warmup_rounds;
         }));
}

/// A newcomer takes the state from those who are the run's, while they train on.
void Coordinator::admit(MemberStatus& member) {
  member.role = Role::joining;
  auto admitted = admission();
  member.admitted = !admitted.donors.empty();
  if (!member.admitted) return say_if_nobody_can_be_dialled(member);  // it is told as soon as somebody can
  say(member.hello.member.name + " takes the state from " + std::to_string(admitted.donors.size()) +
      (admitted.donors.size() == 1 ? " member" : " members"));
  send(member, std::move(admitted));
}

void Coordinator::say_if_nobody_can_be_dialled(MemberStatus& newcomer) {
  std::string names;
  for (const auto& member : who_has_the_state()) names += (names.empty() ? "" : ", ") + member.name;
  if (names.empty() || std::exchange(newcomer.found_no_port, true)) return;
  say(newcomer.hello.member.name + " waits for the state: nobody who has it opens a port to be dialled at (" +
      names + "); stop the run and resume it with a port at one of them");
}

/// Where rounds follow each other faster than it takes to come from the state to a view, a newcomer finds
/// again and again that nobody keeps what it needs by then. So they wait for it: between a seal and its view.
void Coordinator::hold_rounds_if_late(const std::string& name) {
  constexpr std::size_t tries = 3;
  const auto missed = missed_.find(name);
  const auto member = members_.find(name);
  if (missed == missed_.end() || missed->second < tries) return;
  if (member == members_.end() || !member->second.admitted) return;
  if (phase_ != Phase::running && phase_ != Phase::changing) return;
  waited_for_ = {name, now_ + options_.detect_timeout};
  const auto why = name + " has been ready for " + std::to_string(missed->second) +
                   " views and in none: the rounds wait for it, for network.detect_timeout at most";
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

// ---- who only looks on ----

std::string Coordinator::reason_to_refuse_observer(const Hello& hello) const {
  const auto& name = hello.member.name;
  if (members_.contains(name))
    return "a replica named '" + name + "' is already here; give the observer another --name";
  if (!options_.elastic) return "a data-parallel run has no rounds that could be followed";
  if (observers_.size() >= max_observers)
    return "there are " + std::to_string(max_observers) + " observers already";
  return reason_of_another_model(hello);
}

void Coordinator::on_observer_hello(ConnectionId from, const Hello& hello) {
  if (auto reason = reason_of_another_run(hello); !reason.empty()) return refuse(from, reason);
  const auto same = std::ranges::find_if(
      observers_, [&](const auto& entry) { return entry.second.hello.member.name == hello.member.name; });
  if (same != observers_.end()) drop_observer(same, "dialled again");
  if (auto reason = reason_to_refuse_observer(hello); !reason.empty()) return refuse(from, reason);
  say(hello.member.name + " observes the run");
  observers_[from] = {.hello = hello, .heard = now_};
  admit_observers();
}

/// It need not have waited for its members: what model they have may have been unknown when it came.
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
    if (admitted.donors.empty()) return;  // it is told as soon as there is somebody
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
    drop_observer(observer, "sent a message that is not an observer's to send");
  }
}

/// One that has followed a member whose rounds are not the run's begins anew.
void Coordinator::on_observer_heartbeat(Observers::iterator observer, const Heartbeat& heartbeat) {
  const auto connection = observer->first;
  for (std::size_t p = 0; p < heartbeat.fragments.size(); ++p) {
    const auto& [round, prefix] = heartbeat.fragments[p];
    const auto points = chains_.find(p);
    if (points == chains_.end()) break;
    const auto point = points->second.find(round);
    if (point == points->second.end() || point->second.prefix == prefix) continue;
    const auto reason = "its chain hash at round " + std::to_string(round) + " of fragment " +
                        std::to_string(p) + " is not the run's";
    actions_.push_back(SendControl{connection, Evicted{reason}});
    return drop_observer(observer, "must take the state anew: " + reason);
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
  const auto bar = barred_.find(member.hello.member.name);
  return bar == barred_.end() || now_ >= bar->second.until;
}

}  // namespace isthmus::outer_sync::protocol
