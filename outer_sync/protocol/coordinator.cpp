#include "isthmus/outer_sync/protocol/coordinator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

bool same_layout(const FragmentLayout& layout, const Sealed& sealed) {
  return sealed.chunk_elements == layout.chunk_elements() &&
         std::ranges::equal(sealed.layout, layout.fragments());
}

constexpr auto too_late = "the run is ending; there is nothing left to join";

/// Highest view that has begun at a member, as far as it has said.
ViewNumber begun(const Coordinator::MemberStatus& member) {
  return std::max({member.hello.activated, member.heartbeat.view, member.state.activated});
}

/// For people.
std::string place_of(const MemberInfo& member) {
  return can_be_dialled(member) ? "joined from " + member.address : "joined; it opens no port";
}

bool trains(const Coordinator::MemberStatus& member) { return protocol::trains(member.hello.member); }

/// The newest that is in all lists; 0 where there is none.
std::uint64_t newest_in_all(std::vector<std::vector<std::uint64_t>> lists) {
  std::optional<std::vector<std::uint64_t>> common;
  for (auto& list : lists) {
    std::ranges::sort(list);
    std::vector<std::uint64_t> both;
    if (common) std::ranges::set_intersection(*common, list, std::back_inserter(both));
    common = common ? std::move(both) : std::move(list);
  }
  return !common || common->empty() ? 0 : common->back();
}

/// It trains nothing, so it has no step and no evaluation to report.
bool is_a_reducers(const ControlMessage& message) {
  return std::holds_alternative<Sealed>(message) || std::holds_alternative<Heartbeat>(message) ||
         std::holds_alternative<Displaced>(message) || std::holds_alternative<StopRequest>(message) ||
         std::holds_alternative<Done>(message) || std::holds_alternative<Leave>(message) ||
         std::holds_alternative<Records>(message);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, Time started)
    : options_(std::move(options)), started_(started), now_(started), own_token_(options_.token) {
  token_is_known_ = options_.last || !options_.recover;
  if (!options_.last && !options_.recover) return;
  phase_ = Phase::suspended;
  if (options_.last) {
    number_ = options_.last->number;
    options_.token = options_.last->token;
    for (const auto& member : options_.last->members) {
      if (protocol::trains(member)) slots_[member.name] = member.slot;
    }
  }
  if (options_.recover) number_ = std::max(number_, *options_.recover);
  // Also as long as a lease lasts that a coordinator before has given just now: until then no view begins
  // without all who may have one.
  gathering_until_ = started + options_.detect_timeout;
}

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
  if (name.empty() || name.size() > 64) return "a replica's name has 1 to 64 characters";
  if (is_operator(name)) return "'" + name + "' is a name of who steers the run; give the worker another one";
  if (hello.site.size() > 64) return "a site's name has at most 64 characters";
  if (!hello.settings.sound()) return name + " tells of settings that cannot be";
  if (std::max(hello.sealed, hello.activated) > highest_view)
    return name + " claims to have sealed view " + std::to_string(std::max(hello.sealed, hello.activated));
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
  if (!members_.contains(name) && members_.size() >= most_members)
    return "there are " + std::to_string(most_members) + " replicas already";
  if (hello.activated > 0 && token_is_known_ && hello.token != options_.token)
    return name + " has been in another run that is called '" + options_.run + "'; start it again";
  if (hello.activated > 0) return {};
  const bool reduces = !protocol::trains(hello.member);
  if (reduces && !options_.elastic)
    return name + " only reduces: in a data-parallel run there is nothing to reduce for it";
  if (phase_ == Phase::joining) {
    const auto other = std::ranges::find_if(members_, [&](const auto& entry) {
      return entry.first != name && trains(entry.second);  // not its former self
    });
    if (other == members_.end() || reduces || hello.resume == other->second.hello.resume) return {};
    return (hello.resume ? "only " + name + " wants to resume"
                         : name + " does not want to resume, unlike the others") +
           "; all or none must";
  }
  if (!options_.elastic) return "the run has begun, and is none that members can join later";
  if (ending_ || stopping_) return too_late;
  return {};
}

void Coordinator::refuse(ConnectionId connection, const std::string& reason) {
  say_of_stranger("refused a worker: " + reason);
  actions_.push_back(SendControl{connection, Refused{reason}});
  close(connection);
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
  if (auto reason = reason_to_refuse(hello); !reason.empty()) return refuse(from, reason);
  if (hello.activated == 0 && hello.fresh) forget_state_before(hello.member);
  const bool was_member = take_over_from(hello);
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
    if (nobody_has_begun()) {
      phase_ = Phase::joining;
      return seal_first_view();
    }
    admit(member);
    if (was_member) change_view(name + " was started again");
    hold_rounds_if_late(name);
    if (state_is_gone()) begin_anew();
    return;
  }
  say(name + " " + place_of(hello.member) + " (" + std::to_string(trainers()) + " of " +
      std::to_string(options_.replicas) + ")");
  first_sealed_ = false;  // it may have come in the place of one that had answered
  seal_first_view_if_all_are_here();
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
  if (static_cast<std::size_t>(std::ranges::count_if(last, protocol::trains)) != options_.replicas)
    return false;
  return std::ranges::all_of(last, [&](const MemberInfo& info) {
    if (!protocol::trains(info)) return true;
    const auto place = members_.find(info.name);
    return place != members_.end() && begun(place->second) == 0 &&
           place->second.hello.member.incarnation == info.incarnation;
  });
}

/// An operator recovers a run, and nobody who has begun it has come.
bool Coordinator::state_is_gone() const {
  return phase_ == Phase::suspended && options_.recover && !token_is_known_ && !gathering_until_;
}

/// Once there are enough who have just been started, with a token of its own: whoever is left of the old run
/// is told to start again.
void Coordinator::begin_anew() {
  const auto is_fresh = [](const MemberStatus& member) { return trains(member) && member.hello.fresh; };
  const auto resumes = [](const MemberStatus& member) { return trains(member) && member.hello.resume; };
  const bool all_or_none = count(resumes) == 0 || count(resumes) == trainers();
  if (trainers() != options_.replicas || count(is_fresh) != trainers() || !all_or_none) {
    std::string stale;
    for (const auto& [name, member] : members_) {
      if (trains(member) && !member.hello.fresh) stale += " " + name;
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
  for (const auto& name : of_old) displace(name, "the run begins anew");
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
  if (hello.activated >= settings_view_ && trains(member)) {
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
  admit_waiting();
}

/// Whose state the run is at: of all trainers that are here, those in whom the highest view has begun.
std::vector<MemberInfo> Coordinator::who_has_the_state() const {
  ViewNumber highest = 0;
  for (const auto& [name, member] : members_) {
    if (able(member) && trains(member)) highest = std::max(highest, begun(member));
  }
  std::vector<MemberInfo> out;
  if (!has_heir()) return out;
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
  if (observers_.size() >= most_observers)
    return "there are " + std::to_string(most_observers) + " observers already";
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
    actions_.push_back(SendControl{connection, Displaced{reason}});
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

// ---- the first view ----

/// One that only reduces and comes a moment later would cost a view change.
void Coordinator::seal_first_view_if_all_are_here() {
  if (phase_ != Phase::joining || first_sealed_ || trainers() != options_.replicas) return;
  if (!all_here_since_) all_here_since_ = now_;
  const auto reducers = members_.size() - trainers();
  if (reducers >= options_.reducers || now_ - *all_here_since_ > options_.detect_timeout) seal_first_view();
}

void Coordinator::seal_first_view() {
  first_sealed_ = true;
  for (auto& [name, member] : members_) member.has_nothing = false;
  const bool resume = first_trainer()->hello.resume;
  const auto step = resume ? choose_checkpoint() : 0;
  if (!step) return end(Ended::How::failed, without_common_checkpoint());
  if (*step > 0) say("resuming from the checkpoint of step " + std::to_string(*step));
  ++number_;
  for (auto& [name, member] : members_) {
    member.answered = false;
    if (!member.has_nothing) send(member, Seal{number_, *step});
    if (member.has_nothing) say(name + " has no checkpoint: it takes the state from the others");
  }
}

/// The newest that all have who have any. The others come in as newcomers do, where the run knows such.
std::optional<std::uint64_t> Coordinator::choose_checkpoint() {
  std::vector<std::vector<std::uint64_t>> lists;
  for (auto& [name, member] : members_) {
    member.has_nothing = trains(member) && options_.elastic && member.hello.checkpoints.empty();
    if (trains(member) && !member.has_nothing) lists.push_back(member.hello.checkpoints);
  }
  const bool enough = lists.size() >= std::max<std::size_t>(options_.least, 1);
  const auto step = enough ? newest_in_all(std::move(lists)) : 0;
  return step > 0 ? std::optional(step) : std::nullopt;
}

std::string Coordinator::without_common_checkpoint() const {
  std::string newest;
  for (const auto& [name, member] : members_) {
    if (!trains(member)) continue;
    const auto& steps = member.hello.checkpoints;
    newest += (newest.empty() ? "" : ", ") + name + " has " +
              (steps.empty() ? "none" : "them up to step " + std::to_string(std::ranges::max(steps)));
  }
  return "no checkpoint is complete on all replicas (" + newest +
         "); bring them back, start without --resume, or move away the checkpoints of those who are behind: "
         "who has none takes the state from the others" +
         (options_.elastic
              ? ", of whom there must be " + std::to_string(std::max<std::size_t>(options_.least, 1))
              : ", but not in a data-parallel run");
}

std::string Coordinator::initial_disagreement() const {
  const auto& first = *first_trainer();
  const auto& first_name = first.hello.member.name;
  const auto layout = layout_of(first.state.layout, first.state.chunk_elements);
  if (!layout) return "the fragments of " + first_name + " are not a layout";
  for (const auto& [name, member] : members_) {
    if (!trains(member) || member.has_nothing) continue;
    if (!same_layout(*layout, member.state) || !answer_fits(*layout, member.state))
      return "the fragments of " + name + " and " + first_name + " differ";
    if (member.state.settings != first.state.settings)
      return "what was set in mid-run (isthmus ctl set) is not the same in the checkpoints of " + name +
             " and " + first_name;
    if (member.state.parameters != first.state.parameters ||
        member.state.fragments != first.state.fragments) {
      return "global parameters of " + name + " and " + first_name +
             " differ before the first step; use the same build, seed and checkpoint";
    }
  }
  return {};
}

/// Somebody may have been lost since all were asked: the first view has all trainers or none, and of the
/// others those that are here.
void Coordinator::begin_first_view_if_sealed() {
  if (!first_sealed_ || trainers() != options_.replicas) return;
  if (unanswered_at_first() == 0) begin_first_view();
}

/// Of those who were asked.
std::size_t Coordinator::unanswered_at_first() const {
  return count([](const MemberStatus& member) { return !member.answered && !member.has_nothing; });
}

/// An earlier one may have begun unheard of at some of those who are here. Nobody has committed in it: with
/// so few members that no other view was formed without the rest, nothing is closed without them either.
void Coordinator::begin_first_view() {
  if (auto difference = initial_disagreement(); !difference.empty())
    return end(Ended::How::diverged, difference);
  const auto& first = first_trainer()->state;
  layout_ = layout_of(first.layout, first.chunk_elements);
  begin_view();
}

// ---- view changes ----

/// Members that cannot be reached are left out, and nobody commits in older views from here on.
void Coordinator::change_view(const std::string& why) {
  if (phase_ == Phase::joining || phase_ == Phase::ended) return;
  if (ending_) finish_if_all_done();
  if (phase_ == Phase::ended) return;
  if (!options_.elastic) return end(Ended::How::failed, why);
  if (expects_more()) {
    // A view that was about to begin may have lost the only one who knows the run's last rounds.
    if (phase_ == Phase::changing) suspend(why + "; waiting for the members of the last view");
    return;
  }
  const auto can_train = [this](const MemberStatus& member) { return able(member) && trains(member); };
  if (const auto here = count(can_train); here < std::max<std::size_t>(options_.least, 1)) {
    return suspend(why + "; " + std::to_string(here) + " of at least " + std::to_string(options_.least) +
                   " replicas are here");
  }
  if (!has_heir()) {
    return suspend("waiting for a member of view " + std::to_string(options_.last->number) +
                   ", whose rounds are the run's; if all of them are gone for good, start the coordinator "
                   "with --recover");
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

/// A coordinator that has come back hears its members out before it forms a view: they commit on in theirs,
/// and whoever is left out for a moment's lateness has to take the state from others.
bool Coordinator::expects_more() const {
  if (!gathering_until_ || now_ >= *gathering_until_) return false;
  if (!options_.last || options_.recover) return true;
  return !std::ranges::all_of(options_.last->members, [&](const MemberInfo& info) {
    const auto place = members_.find(info.name);
    return place != members_.end() && able(place->second);
  });
}

/// A trainer of the view that was announced last is here: rounds that only they have seen are not lost.
bool Coordinator::has_heir() const {
  if (!options_.last || options_.recover) return true;
  return std::ranges::any_of(options_.last->members, [&](const MemberInfo& info) {
    const auto place = members_.find(info.name);
    return protocol::trains(info) && place != members_.end() &&
           place->second.hello.member.incarnation == info.incarnation && able(place->second);
  });
}

void Coordinator::suspend(const std::string& why) {
  if (phase_ != Phase::suspended || why != suspended_because_) say("rounds do not commit: " + why);
  suspended_because_ = why;
  phase_ = Phase::suspended;
  for (auto& [name, member] : members_) {
    if (member.role == Role::member) member.role = Role::ready;
  }
  broadcast(Suspended{why});
  drop_wishes("rounds do not commit: " + why);
  actions_.push_back(MembersChanged{});
  admit_waiting();
}

void Coordinator::on_sealed(MemberStatus& member, const Sealed& sealed) {
  if (sealed.view != number_) return;
  const bool first = phase_ == Phase::joining;
  if (!first && phase_ != Phase::changing) return;
  const bool blank = !trains(member) && sealed.activated == 0;  // it knows of nothing yet
  if (!first) {
    if (!able(member)) return;  // it was not asked
    if (!layout_ && !blank) layout_ = layout_of(sealed.layout, sealed.chunk_elements);
    if (!blank && (!layout_ || !same_layout(*layout_, sealed) || !answer_fits(*layout_, sealed)))
      return lose(member.hello.member.name, "reported rounds that are not of this run's layout");
  }
  member.state = blank ? Sealed() : sealed;
  member.answered = true;
  if (first) return begin_first_view_if_sealed();
  if (unanswered() == 0 && leases_are_out() && !waits_for_newcomer()) begin_view();
}

std::size_t Coordinator::unanswered() const {
  return count([this](const MemberStatus& member) { return able(member) && !member.answered; });
}

/// Of everybody that will not be in the view.
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
  for (const auto& name : silent) lose(name, "did not answer within network.detect_timeout");
}

void Coordinator::begin_view() {
  std::vector<SealedMember> answers;
  for (const auto& [name, member] : members_) {
    if (member.answered) answers.push_back({member.hello.member, member.state, member.uplink});
  }
  if (auto difference = disagreement(*layout_, answers); !difference.empty())
    return end(Ended::How::diverged, difference);
  auto plan = plan_view(*layout_, answers, options_.topology);
  for (const auto& [name, reason] : plan.displaced) displace(name, reason);
  const auto trainers_in =
      static_cast<std::size_t>(std::ranges::count_if(plan.message.view.members, protocol::trains));
  if (trainers_in < std::max<std::size_t>(options_.least, 1)) {
    return suspend(std::to_string(trainers_in) + " of at least " + std::to_string(options_.least) +
                   " replicas can go on");
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
    member.has_nothing = false;  // from here on it is one more newcomer
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
      // It begins where the run is, whatever it has said of itself.
      member.heartbeat.fragments.clear();
      member.state.fragments.clear();
      for (const auto& chain : message.chains) member.state.fragments.push_back(chain.back());
    }
  }
  settings_ = message.settings;
  settings_view_ = number_;
  tell_followers();
  options_.last = LastView{number_, message.view.members, options_.token};
  options_.recover.reset();
  gathering_until_.reset();
  if (waited_for_) missed_.erase(waited_for_->first);
  waited_for_.reset();
  chains_.clear();  // what was reported in older views may have been undone
  health_.begin(message.view, *layout_);
  paths_.begin(message.view);
  relays_.begin(message.view);
  for (auto& [connection, observer] : observers_) observer.admitted = false;  // to those who are here now
  actions_.push_back(Store{*options_.last});
  const auto reducers = message.view.members.size() - count([](const MemberStatus& member) {
                          return member.role == Role::member && trains(member);
                        });
  say("view " + std::to_string(number_) + " begins with " +
      std::to_string(message.view.members.size() - reducers) + " replicas" +
      (reducers == 0 ? "" : " and " + std::to_string(reducers) + (reducers == 1 ? " reducer" : " reducers")) +
      (first ? "" : ": " + names(Role::member)));
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member) send(member, message);
  }
  tell_relays();

  admit_waiting();
  actions_.push_back(MembersChanged{});
  if (stopping_) broadcast(Hold{});
  if (stop_step_) announce_stop_step();  // whoever has come back has not heard it
  settle_stop();
  settle_evaluations();
}

/// It comes again as a newcomer, under another incarnation: what it has contributed so far is of a replica
/// that is gone.
void Coordinator::displace(std::string name, const std::string& reason) {
  const auto place = members_.find(name);
  say(name + " must take the state from others: " + reason);
  send(place->second, Displaced{reason});
  remove(place);
}

/// Whoever is no member any more may have a lease all the same.
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

// ---- running ----

void Coordinator::on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat) {
  measure_rate(member, heartbeat);
  member.heartbeat = heartbeat;
  if (trains(member)) settle_wishes(heartbeat.view);
  if (heartbeat.uplink > 0) member.uplink = heartbeat.uplink;
  HeartbeatReply reply{.view = 0,
                       .number = heartbeat.number,
                       .lowest = {},
                       .newest = {},
                       .lease = 0,
                       .inner_steps_per_second = median_speed(),
                       .checkpoint = common_checkpoint()};
  if (phase_ == Phase::running) {
    if (member.role == Role::member) {
      reply.view = number_;
      reply.lease = static_cast<std::uint64_t>(options_.detect_timeout.count());
      member.lease_end = now_ + options_.detect_timeout;
    }
    reply.lowest.assign(layout_->fragment_count(), ~Round{0});
    reply.newest.assign(layout_->fragment_count(), 0);
    for (const auto& [name, other] : members_) {
      if (other.role != Role::member) continue;
      const auto rounds = rounds_of(other);
      for (FragmentId p = 0; p < layout_->fragment_count(); ++p) {
        reply.lowest[p] = std::min(reply.lowest[p], rounds[p]);
        if (trains(other)) reply.newest[p] = std::max(reply.newest[p], rounds[p]);
      }
    }
    // While a view with a newcomer forms, the others go on; what it needs then is kept as long as it may be.
    if (somebody_joins()) reply.lowest.assign(layout_->fragment_count(), 0);
  }
  // What a newcomer has to reach before it is ready: it may be whom the others wait for.
  if (phase_ == Phase::suspended || waits_for_newcomer()) reply.newest = newest_of_donors();
  const auto newest = reply.newest;
  send(member, std::move(reply));
  admit_waiting();  // it may be the first that has what they need, or past the warm-up now
  if (phase_ != Phase::running || member.role != Role::member) return;
  check_chains(member);
  if (phase_ != Phase::running) return;
  take_health(member);
  take_paths(member);
  actions_.push_back(MembersChanged{});
  const auto name = member.hello.member.name;
  check_links(member);
  if (phase_ == Phase::running) check_lag(name, newest);
}

void Coordinator::check_chains(const MemberStatus& member) {
  constexpr std::size_t kept = 8;  // only the newest few rounds can be reported by somebody else too
  const auto& name = member.hello.member.name;
  const auto& fragments = member.heartbeat.fragments;
  if (member.heartbeat.view != number_ || fragments.size() > layout_->fragment_count()) return;
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    const auto& [round, prefix] = fragments[p];
    auto& points = chains_[p];
    const auto [place, is_new] = points.try_emplace(round, ChainPoint{prefix, name});
    if (!is_new && place->second.prefix != prefix) {
      return end(Ended::How::diverged, "chain hashes of " + name + " and " + place->second.by +
                                           " differ at round " + std::to_string(round) + " of fragment " +
                                           std::to_string(p));
    }
    if (points.size() > kept) points.erase(points.begin());
  }
}

void Coordinator::take_health(MemberStatus& member) {
  const auto parts = std::exchange(member.heartbeat.health, {});
  if (parts.empty() || parts.size() > layout_->fragment_count() || member.heartbeat.view != number_) return;
  const auto id = id_of(member.hello.member);
  for (const auto& part : parts) {
    if (auto judged = health_.add(id, part)) actions_.push_back(std::move(*judged));
  }
  for (auto& line : health_.take_lines()) say(std::move(line));
}

void Coordinator::take_paths(MemberStatus& member) {
  const auto reports = std::exchange(member.heartbeat.paths, {});
  if (member.heartbeat.view != number_) return;
  paths_.add(id_of(member.hello.member), reports);
  for (auto& line : paths_.take_lines()) say(std::move(line));
}

/// Two members that reach the coordinator and not each other need a third one between them.
void Coordinator::check_links(const MemberStatus& member) {
  if (member.heartbeat.view == number_) relays_.add(id_of(member.hello.member), member.heartbeat);
  const auto helpless = relays_.settle(now_, options_.detect_timeout);
  tell_relays();
  if (!helpless.empty()) leave_out(helpless);
}

/// Those whom nobody can help cannot be in one view. Whoever lacks most peers is left out, else one that only
/// reduces, else who comes later by name; it may come back.
void Coordinator::leave_out(const std::vector<RunRelays::Pair>& pairs) {
  std::map<ReplicaId, std::string> ids;
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member) ids[id_of(member.hello.member)] = name;
  }
  std::map<std::string, std::set<std::string>> lacks;
  for (const auto& [a, b] : pairs) {
    const auto one = ids.find(a), other = ids.find(b);
    if (one == ids.end() || other == ids.end()) continue;
    lacks[one->second].insert(other->second);
    lacks[other->second].insert(one->second);
  }
  if (lacks.empty()) return;
  const auto worst = std::ranges::max_element(lacks, {}, [this](const auto& entry) {
    const auto& [lacking, peers] = entry;
    return std::tuple(peers.size(), !trains(members_.at(lacking)), lacking);
  });
  const auto& [name, others] = *worst;
  const auto& own = members_.at(name).hello.member;
  const auto& other = members_.at(*others.begin()).hello.member;
  bar(name);
  lose(name, "is left out: there is no connection between " +
                 (can_be_dialled(own) ? own.address : "it, which opens no port,") + " and " + other.name +
                 (can_be_dialled(other) ? " at " + other.address : ", which opens none") +
                 ", and nobody who reaches both; are both addresses reachable from the other side?");
}

void Coordinator::tell_relays() {
  if (const auto news = relays_.take_news()) {
    for (const auto& [name, member] : members_) {
      if (member.role == Role::member) send(member, *news);
    }
  }
  for (auto& line : relays_.take_lines()) say(std::move(line));
}

std::vector<Coordinator::RelayedPair> Coordinator::relays() const {
  std::map<ReplicaId, std::string> names;
  for (const auto& [name, member] : members_) names[id_of(member.hello.member)] = name;
  std::vector<RelayedPair> out;
  for (const auto& [pair, by] : relays_.relays()) {
    if (!names.contains(pair.first) || !names.contains(pair.second) || !names.contains(by)) continue;
    const auto& [one, other] = std::minmax(names.at(pair.first), names.at(pair.second));
    out.push_back({one, other, names.at(by)});
  }
  return out;
}

void Coordinator::bar(const std::string& name) {
  const auto shortest = 6 * options_.detect_timeout, longest = 24 * options_.detect_timeout;
  auto& bar = barred_[name];
  bar.length = std::clamp(2 * bar.length, shortest, longest);
  bar.until = now_ + bar.length;
}

/// Of those that have said how fast they are. A median: one that is far off moves nobody.
double Coordinator::median_speed() const {
  std::vector<double> speeds;
  for (const auto& [name, member] : members_) {
    const double speed = member.heartbeat.inner_steps_per_second;
    if (member.role == Role::member && std::isfinite(speed) && speed > 0) speeds.push_back(speed);
  }
  if (speeds.empty()) return 0;
  std::ranges::sort(speeds);
  return (speeds[(speeds.size() - 1) / 2] + speeds[speeds.size() / 2]) / 2;
}

/// What anybody deletes is older than this, so there always is one that all have.
std::uint64_t Coordinator::common_checkpoint() const {
  if (phase_ != Phase::running) return 0;
  std::vector<std::vector<std::uint64_t>> lists;
  for (const auto& [name, member] : members_) {
    if (member.role == Role::member && trains(member)) lists.push_back(member.heartbeat.checkpoints);
  }
  return newest_in_all(std::move(lists));
}

std::vector<Round> Coordinator::newest_of_donors() const {
  std::vector<Round> newest;
  for (const auto& donor : donors()) {
    const auto& reported = members_.at(donor.name).heartbeat.fragments;
    newest.resize(std::max(newest.size(), reported.size()), 0);
    for (std::size_t p = 0; p < reported.size(); ++p) newest[p] = std::max(newest[p], reported[p].first);
  }
  return newest;
}

/// Where a member of the view stands: what it has reported last, but at least what it had sealed with.
std::vector<Round> Coordinator::rounds_of(const MemberStatus& member) const {
  std::vector<Round> rounds;
  for (const auto& fragment : member.state.fragments) rounds.push_back(fragment.round);
  const auto& reported = member.heartbeat.fragments;
  for (std::size_t p = 0; p < rounds.size() && reported.size() == rounds.size(); ++p)
    rounds[p] = std::max(rounds[p], reported[p].first);
  return rounds;
}

/// With a quorum the others need not wait for one that has fallen behind; and they do not keep for ever what
/// it would need. The others' reports may be newer by many rounds than this one, so it is held against it
/// only if, for as long as a report can be on its way, it does not reach what they had at the beginning of
/// that time.
void Coordinator::check_lag(const std::string& name, const std::vector<Round>& newest) {
  const auto place = members_.find(name);
  if (place == members_.end() || place->second.heartbeat.view != number_) return;
  auto& member = place->second;
  const auto rounds = rounds_of(member);
  for (FragmentId p = 0; p < member.to_reach.size(); ++p) {
    const auto goal = member.to_reach[p];
    if (goal <= Member::max_lag || rounds[p] >= goal - Member::max_lag) continue;
    if (now_ - member.lags_since <= options_.detect_timeout) return;
    displace(name, "it is at round " + std::to_string(rounds[p]) + " of fragment " + std::to_string(p) +
                       ", the others are at " + std::to_string(newest[p]));
    return change_view(name + " lags");
  }
  member.to_reach = newest;
  member.lags_since = now_;
}

void Coordinator::on_ready(MemberStatus& member) {
  if (member.role != Role::joining || !member.admitted) return;
  member.role = Role::ready;
  if (missed_.size() >= most_members) missed_.clear();  // names are anybody's to give
  ++missed_[member.hello.member.name];
  change_view(member.hello.member.name + " is ready to take part");
}

void Coordinator::on_eval(const MemberStatus& member, const EvalReport& report) {
  constexpr std::size_t most_open = 16;  // of steps that some have not reached
  auto& evaluation = evaluations_[report.step];
  if (std::ranges::find(evaluation.by, member.hello.member.name) != evaluation.by.end()) return;
  evaluation.sum_nats += report.sum_nats;
  evaluation.tokens += report.tokens;
  evaluation.by.push_back(member.hello.member.name);
  if (evaluations_.size() > most_open) evaluations_.erase(evaluations_.begin());
  settle_evaluations();
}

/// Done when everybody who is still a member has reported.
void Coordinator::settle_evaluations() {
  for (auto at = evaluations_.begin(); at != evaluations_.end();) {
    const auto& evaluation = at->second;
    const auto missing = count([&](const MemberStatus& member) {
      return member.role == Role::member && trains(member) &&
             std::ranges::find(evaluation.by, member.hello.member.name) == evaluation.by.end();
    });
    if (missing > 0 || phase_ != Phase::running) {
      ++at;
      continue;
    }
    const auto tokens = std::max<std::uint64_t>(evaluation.tokens, 1);
    actions_.push_back(Evaluated{at->first, evaluation.sum_nats / static_cast<double>(tokens)});
    at = evaluations_.erase(at);
  }
}

// ---- stopping ----

void Coordinator::request_stop(const std::string& reason) {
  if (stopping_ || phase_ == Phase::ended) return;
  stopping_ = true;
  say("stopping: " + reason);
  drop_wishes("the run is being stopped");
  if (phase_ == Phase::joining) return end(Ended::How::stopped, "stopped before the first step");
  dismiss_newcomers();
  broadcast(Hold{});
}

void Coordinator::on_held(MemberStatus& member, const Held& held) {
  if (!stopping_ || member.held) return;
  member.held = true;
  member.held_step = held.step;
  settle_stop();
}

void Coordinator::settle_stop() {
  // Of a run that a coordinator takes up again all must be heard: whoever has stopped goes no further.
  if (!stopping_ || expects_more()) return;
  auto last = stop_step_;
  for (const auto& [name, other] : members_) {
    if ((other.role != Role::member && other.role != Role::ready) || !trains(other)) continue;
    if (!other.held) return;  // one that is done answers too: its last step is the one that all must reach
    last = std::max(last.value_or(0), other.held_step);
  }
  if (last == stop_step_) return;  // a lost member changes nothing: others may have stopped there
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
  drop_wishes("the run is ending");
  dismiss_newcomers();
}

/// Whoever still takes the state from others cannot take part any more.
void Coordinator::dismiss_newcomers() {
  for (auto next = members_.begin(); next != members_.end();) {
    const auto place = next++;
    if (place->second.role != Role::joining) continue;
    say(place->first + " comes too late: " + too_late);
    send(place->second, Refused{too_late});
    remove(place);
  }
}

void Coordinator::finish_if_all_done() {
  if (expects_more()) return;  // the others' ends are to be heard too
  const auto here = [this](const MemberStatus& member) { return able(member) && trains(member); };
  const auto done = [&](const MemberStatus& member) { return here(member) && member.done; };
  if (count(here) == 0 || count(done) < count(here)) return;
  for (const auto& [name, member] : members_) {
    if (!trains(member) && able(member) && !member.done)  // the others needed it until now
      send(member, StopAt{first_trainer()->heartbeat.step});
  }
  if (count([this](const MemberStatus& member) { return able(member) && !member.done; }) == 0) finish();
}

void Coordinator::finish() {
  std::string problem, first;
  Digest hash;
  for (const auto& [name, member] : members_) {
    if (!member.done || !trains(member)) continue;  // who only reduces has no parameters
    if (first.empty()) {
      first = name;
      hash = member.result.global_hash;
    } else if (member.result.global_hash != hash) {
      problem = "global hashes of " + name + " and " + first + " differ at the end";
    }
  }
  std::vector<Round> last;  // those who are done have said it just before
  for (const auto& [name, member] : members_) {
    const auto rounds = rounds_of(member);
    last.resize(std::max(last.size(), rounds.size()), 0);
    for (std::size_t p = 0; p < rounds.size(); ++p) last[p] = std::max(last[p], rounds[p]);
  }
  for (const auto& [connection, observer] : observers_) {  // which then takes the last rounds
    actions_.push_back(SendControl{connection, HeartbeatReply{0, 0, {}, last}});
    actions_.push_back(SendControl{connection, Finished{problem, hash}});
    close(connection);
  }
  broadcast(Finished{problem, hash});
  for (const auto& [name, member] : members_) close(member.connection);
  drop_wishes("the run has ended");
  phase_ = Phase::ended;
  actions_.push_back(Ended{problem.empty() ? Ended::How::finished : Ended::How::diverged, problem});
}

void Coordinator::end(Ended::How how, const std::string& reason) {
  if (phase_ == Phase::ended) return;
  broadcast(Abort{reason});
  for (const auto& [name, member] : members_) close(member.connection);
  for (const auto& [connection, observer] : observers_) {
    actions_.push_back(SendControl{connection, Abort{reason}});
    close(connection);
  }
  drop_wishes("the run has ended");
  phase_ = Phase::ended;
  actions_.push_back(Ended{how, reason});
}

// ---- what members write for people ----

/// A coordinator that has just come does not know how far the one before it was: it begins where the member
/// does. Names are bounded by whom hellos are accepted of.
void Coordinator::on_records(const MemberStatus& member, const Records& records) {
  const auto& info = member.hello.member;
  const auto is_sound = [](const Record& record) {
    return record.kind <= RecordKind::metrics && record.line.size() <= longest_record;
  };
  if (records.records.empty() || records.first > most_records ||
      !std::ranges::all_of(records.records, is_sound)) {
    say(info.name + " sent records that cannot be; dropped");
    return close(member.connection);
  }
  auto& up_to = gathered_.try_emplace(info.name, GatheredUpTo{info.incarnation, records.first}).first->second;
  if (up_to.incarnation != info.incarnation) up_to = {info.incarnation, 0};
  const auto end = records.first + records.records.size();
  if (end > up_to.next) {
    const auto known = up_to.next > records.first ? up_to.next - records.first : 0;
    const auto left_out = records.first > up_to.next ? records.first - up_to.next : 0;
    const auto news = records.records.begin() + static_cast<std::ptrdiff_t>(known);
    actions_.push_back(Gathered{info.name, info.incarnation, left_out, {news, records.records.end()}});
    up_to.next = end;
  }
  send(member, RecordsTaken{up_to.next});
}

// ---- what comes in ----

void Coordinator::receive(ConnectionId from, Time now, const ControlMessage& message) {
  if (phase_ == Phase::ended) return;
  now_ = std::max(now_, now);
  if (const auto observer = observers_.find(from); observer != observers_.end())
    return on_observer(observer, message);
  const auto name = name_of(from);
  if (name.empty()) {
    if (closing_.contains(from)) return;  // on its way when we gave it up
    if (const auto* command = std::get_if<Command>(&message)) return on_command(from, *command);
    if (const auto* hello = std::get_if<Hello>(&message)) return on_hello(from, *hello);
    say_of_stranger("dropped a connection that did not begin with a hello");
    close(from);
    return;
  }
  members_.at(name).heard = now_;
  on_message(name, message);
}

void Coordinator::on_message(const std::string& name, const ControlMessage& message) {
  auto& member = members_.at(name);
  if (!trains(member) && !is_a_reducers(message)) {
    say(name + " sent a message that is not for one that only reduces; dropped");
    return close(member.connection);
  }
  std::visit(Overloaded{
                 [&](const Sealed& sealed) { on_sealed(member, sealed); },
                 [&](const Heartbeat& heartbeat) { on_heartbeat(member, heartbeat); },
                 [&](const Ready&) { on_ready(member); },
                 [&](const Displaced& displaced) {
                   displace(name, displaced.reason);
                   change_view(name + " is not of the run's history");
                 },
                 [&](const EvalReport& report) { on_eval(member, report); },
                 [&](const Announce& announce) { broadcast(announce); },
                 [&](const StopRequest& request) { request_stop(request.reason + " (" + name + ")"); },
                 [&](const Held& held) { on_held(member, held); },
                 [&](const Done& done) { on_done(member, done); },
                 [&](const Leave& leave) { lose(name, "left: " + leave.reason); },
                 [&](const Records& records) { on_records(member, records); },
                 [&](const auto&) {
                   say(name + " sent a message that is not a member's to send; dropped");
                   close(member.connection);
                 },
             },
             message);
}

void Coordinator::closed(ConnectionId connection) {
  closing_.erase(connection);
  if (operators_.erase(connection) > 0) return;  // what he has asked for is done all the same
  if (const auto observer = observers_.find(connection); observer != observers_.end()) {
    say(observer->second.hello.member.name + " observes no more: its connection closed");
    observers_.erase(observer);
    return;
  }
  const auto name = name_of(connection);
  if (name.empty() || phase_ == Phase::ended) return;
  lose(name, "is lost: its connection closed");
}

void Coordinator::lose(std::string name, const std::string& how) {
  const auto place = members_.find(name);
  const bool mattered = place->second.role == Role::member || place->second.role == Role::ready;
  const bool trained = trains(place->second);
  remove(place);
  if (phase_ == Phase::joining) {
    if (trained && trainers() + 1 == options_.replicas) {  // they wait again
      started_ = now_;
      all_here_since_.reset();
      first_sealed_ = false;
    }
    say(name + " " + how + (trained ? "; its place is free again" : ""));
    return begin_first_view_if_sealed();  // it may be what the others waited for
  }
  say(name + " " + how);
  actions_.push_back(MembersChanged{});
  if (trained && trainers() == 0 && how.starts_with("left")) return end(Ended::How::failed, name + " " + how);
  if (mattered) change_view(name + " " + how);
  settle_stop();
}

void Coordinator::tick(Time now) {
  if (phase_ == Phase::ended) return;
  now_ = std::max(now_, now);
  // Once all are here they may load for as long as they give signs of life.
  if (phase_ == Phase::joining && trainers() < options_.replicas && now_ - started_ > options_.join_timeout) {
    return end(Ended::How::failed, "only " + std::to_string(trainers()) + " of " +
                                       std::to_string(options_.replicas) +
                                       " replicas joined within network.join_timeout");
  }
  seal_first_view_if_all_are_here();
  const auto still = std::ranges::find_if(
      observers_, [&](const auto& entry) { return now_ - entry.second.heard > options_.detect_timeout; });
  if (still != observers_.end()) drop_observer(still, "is silent for longer than network.detect_timeout");
  const auto silent = std::ranges::find_if(
      members_, [&](const auto& entry) { return now_ - entry.second.heard > options_.detect_timeout; });
  if (silent != members_.end())
    return lose(silent->first, "is lost: silent for longer than network.detect_timeout");
  if (phase_ == Phase::changing) {
    const auto waiting = unanswered();
    if (waiting == 0 && leases_are_out() && !waits_for_newcomer()) return begin_view();
    if (waiting > 0 && now_ - change_began_ > options_.detect_timeout) return drop_silent_answers();
  }
  if (gathering_until_ && now_ >= *gathering_until_) {
    gathering_until_.reset();
    if (members_.empty()) return;
    if (state_is_gone()) return begin_anew();
    return change_view("not all members of the last view are here");
  }
  for (auto& [name, bar] : barred_) {
    if (bar.until == Time{} || now_ < bar.until) continue;
    bar.until = {};
    if (members_.contains(name)) return change_view(name + " may try again");
  }
  if (trainers() > 0 || phase_ == Phase::joining) {
    nobody_since_.reset();
  } else if (!nobody_since_) {
    nobody_since_ = now_;
  } else if (now_ - *nobody_since_ > options_.join_timeout) {
    end(Ended::How::failed,
        "no replica has been here for network.join_timeout; resume from the last checkpoint");
  }
}

void Coordinator::say(std::string text) { actions_.push_back(Say{std::move(text)}); }
void Coordinator::say_of_stranger(std::string text) { actions_.push_back(Say{std::move(text), true}); }

void Coordinator::close(ConnectionId connection) {
  closing_.insert(connection);
  actions_.push_back(CloseConnection{connection});
}

void Coordinator::send(const MemberStatus& member, ControlMessage message) {
  actions_.push_back(SendControl{member.connection, std::move(message)});
}

void Coordinator::broadcast(const ControlMessage& message) {
  for (const auto& [name, member] : members_) send(member, message);
}

std::string Coordinator::name_of(ConnectionId connection) const {
  for (const auto& [name, member] : members_) {
    if (member.connection == connection) return name;
  }
  return {};
}

std::string Coordinator::names(Role role) const {
  std::string out;
  for (const auto& [name, member] : members_) {
    if (member.role == role) out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

template <class Select>
std::size_t Coordinator::count(Select select) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(members_, [&](const auto& entry) { return select(entry.second); }));
}
std::size_t Coordinator::count(Role role) const {
  return count([role](const MemberStatus& member) { return member.role == role; });
}
std::size_t Coordinator::trainers() const {
  return count([](const MemberStatus& member) { return trains(member); });
}
std::size_t Coordinator::participating() const {
  if (phase_ != Phase::running) return 0;
  return count([](const MemberStatus& member) { return member.role == Role::member && trains(member); });
}
const Coordinator::MemberStatus* Coordinator::first_trainer() const {
  const auto place = std::ranges::find_if(
      members_, [](const auto& entry) { return trains(entry.second) && !entry.second.has_nothing; });
  return place == members_.end() ? nullptr : &place->second;
}

}  // namespace isthmus::outer_sync::protocol
