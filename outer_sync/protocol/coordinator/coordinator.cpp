#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

constexpr std::uint64_t longest_lease = 24ULL * 3600 * 1'000'000;  // limits what a file says

/// Messages of reducers. They train nothing, so they have no step and no evaluation to report.
bool is_a_reducers(const ControlMessage& message) {
  return std::holds_alternative<Sealed>(message) || std::holds_alternative<Heartbeat>(message) ||
         std::holds_alternative<Evicted>(message) || std::holds_alternative<StopRequest>(message) ||
         std::holds_alternative<Done>(message) || std::holds_alternative<Leave>(message) ||
         std::holds_alternative<Records>(message);
}

bool is_a_members(const ControlMessage& message) {
  return is_a_reducers(message) || std::holds_alternative<Ready>(message) ||
         std::holds_alternative<EvalReport>(message) || std::holds_alternative<CheckpointRequest>(message) ||
         std::holds_alternative<Announce>(message) || std::holds_alternative<Held>(message);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, Time started)
    : options_(std::move(options)),
      planned_(options_.replicas),
      started_(started),
      now_(started),
      own_token_(options_.token),
      checkpoints_(options_.checkpoint_interval) {
  token_is_known_ = options_.last || !options_.recover;
  if (!options_.last && !options_.recover) return;
  phase_ = Phase::suspended;
  if (options_.last) {
    number_ = options_.last->number;
    options_.token = options_.last->token;
    settings_ = options_.last->settings;
    settings_view_ = options_.last->number;
    checkpoints_.begin_with(options_.last->checkpoint);
    if (!options_.recover) remember(*options_.last);
    for (const auto& member : options_.last->members) {
      if (protocol::trains(member)) slots_[member.name] = member.slot;
    }
  }
  if (options_.recover) number_ = std::max(number_, *options_.recover);
  if (options_.before) checkpoints_.begin_with(options_.before->checkpoint);
  // The previous coordinator may just have granted a lease, with its own detect_timeout. Until that lease has
  // ended, no view begins without all members that may hold one.
  const auto& before = options_.last ? options_.last : options_.before;
  const auto lease = before ? Time(std::min(before->lease, longest_lease)) : Time{};
  gathering_until_ = started + std::max(options_.detect_timeout, lease);
}

// ---- records of members ----

/// A new coordinator does not know which records the previous one has stored, and starts where the member
/// does. The map contains only names with an accepted hello.
void Coordinator::on_records(const MemberStatus& member, const Records& records) {
  const auto& info = member.hello.member;
  if (auto news = gathered_.add(info, records))
    actions_.push_back(Gathered{info.name, info.incarnation, news->left_out, std::move(news->records)});
  send(member, RecordsTaken{gathered_.next(info)});
}

// ---- incoming messages ----

void Coordinator::receive(ConnectionId from, Time now, const ControlMessage& message) {
  if (phase_ == Phase::ended) return;
  now_ = std::max(now_, now);
  if (const auto observer = observers_.find(from); observer != observers_.end())
    return on_observer(observer, message);
  const auto name = name_of(from);
  if (name.empty()) {
    if (closing_.contains(from)) return;  // in transit when the connection was given up
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
  if (!is_a_members(message) || (!trains(member) && !is_a_reducers(message))) {
    say(name + " sent a message that " +
        (is_a_members(message) ? "reducers do not send" : "members do not send") + "; dropped");
    return close(member.connection);
  }
  if (const auto problem = breach_of(member, message); !problem.empty()) return drop_for(name, problem);
  std::visit(Overloaded{
                 [&](const Sealed& sealed) { on_sealed(member, sealed); },
                 [&](const Heartbeat& heartbeat) { on_heartbeat(member, heartbeat); },
                 [&](const Ready&) { on_ready(member); },
                 [&](const Evicted& evicted) {
                   evict(name, evicted.reason);
                   change_view(name + " has rounds outside the run's history");
                 },
                 [&](const EvalReport& report) { on_eval(member, report); },
                 [&](const Announce& announce) { broadcast(announce); },
                 [&](const StopRequest& request) { request_stop(request.reason + " (" + name + ")"); },
                 [&](const CheckpointRequest& request) { request_checkpoint(name, request.reason); },
                 [&](const Held& held) { on_held(member, held); },
                 [&](const Done& done) { on_done(member, done); },
                 [&](const Leave& leave) { lose(std::vector{name}, "left: " + leave.reason, true); },
                 [&](const Records& records) { on_records(member, records); },
                 [](const auto&) {},
             },
             message);
}

Bounds Coordinator::bounds() const {
  // A run that begins anew may have another model.
  return {.steps = options_.steps, .layout = layout_ && phase_ != Phase::joining ? &*layout_ : nullptr};
}

/// Checks that need the coordinator's knowledge: which views have begun, and for which members.
std::string Coordinator::breach_of(const MemberStatus& member, const ControlMessage& message) const {
  if (auto problem = problem_of_message(message, bounds()); !problem.empty()) return problem;
  ViewNumber view = 0;
  if (const auto* beat = std::get_if<Heartbeat>(&message)) view = beat->view;
  if (const auto* sealed = std::get_if<Sealed>(&message)) {
    view = sealed->activated;
    if (trains(member) && sealed->layout.empty()) return "a trainer without a layout";
    if (auto problem = problem_of_report(view, sealed->settings); !problem.empty()) return problem;
  }
  return may_have_begun(member.hello, view) ? std::string()
                                            : "view " + std::to_string(view) + ", which has not begun for it";
}

/// A view may begin for a member after the connection on which it was announced has ended.
bool Coordinator::may_have_begun(const Hello& hello, ViewNumber view) const {
  if (view <= hello.activated) return true;
  const auto known = announced_.find(view);
  if (known != announced_.end()) return known->second.members.contains(id_of(hello.member));
  return view <= hello.sealed && (announced_.empty() || view < announced_.begin()->first);
}

/// The member may come back, but is left out of views for a while, each time for longer. `name` is passed by
/// value: it may be the member's key.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Coordinator::drop_for(std::string name, const std::string& problem) {
  const auto why = "broke the protocol: " + problem;
  send(members_.at(name), Refused{name + " " + why});
  bars_.add(name, now_, options_.detect_timeout);
  lose(name, why + "; dropped");
}

void Coordinator::closed(ConnectionId connection) {
  closing_.erase(connection);
  if (operators_.erase(connection) > 0) return;  // the command is carried out anyway
  if (const auto observer = observers_.find(connection); observer != observers_.end()) {
    say(observer->second.hello.member.name + " has stopped observing: its connection closed");
    observers_.erase(observer);
    return;
  }
  const auto name = name_of(connection);
  if (name.empty() || phase_ == Phase::ended) return;
  lose(name, "is lost: its connection closed");
}

void Coordinator::lose(const std::vector<std::string>& names, const std::string& how, bool left) {
  const bool all_were_here = trainers() == planned_;
  bool mattered = false, trained = false;
  std::string lost;
  for (const auto& name : names) {
    const auto place = members_.find(name);
    const bool trains_here = trains(place->second);
    mattered = mattered || place->second.role == Role::member || place->second.role == Role::ready;
    trained = trained || trains_here;
    if (trains_here && left) left_.insert(id_of(place->second.hello.member));
    remove(place);
    if (trains_here && !left) lost_at_[name] = now_;
    say(name + " " + how + (phase_ == Phase::joining && trains_here ? "; its place is free again" : ""));
    lost += (lost.empty() ? "" : "; ") + name + " " + how;
  }
  if (phase_ == Phase::joining) {
    if (trained && all_were_here) {  // the others wait again
      started_ = now_;
      all_here_since_.reset();
      first_sealed_ = false;
    }
    if (goes_back_to_ && trainers() == 0) started_ = now_;  // replicas may be restarting
    return begin_first_view_if_sealed();                    // the others may have waited only for this one
  }
  actions_.push_back(MembersChanged{});
  if (trained) last_lost_ = lost;
  if (trained && trainers() == 0 && left && !somebody_may_return() && !all_may_return())
    return end(Ended::How::failed, lost);
  if (mattered) change_view(lost);
  settle_stop();
}

/// A coordinator that stood still finds all connections closed, and the members come back.
bool Coordinator::somebody_may_return() {
  std::erase_if(lost_at_, [this](const auto& entry) { return now_ - entry.second > options_.join_timeout; });
  return !lost_at_.empty();
}

void Coordinator::tick(Time now) {
  if (phase_ == Phase::ended) return;
  now_ = std::max(now_, now);
  // Once all replicas are here, they may load for as long as they send heartbeats.
  if (phase_ == Phase::joining && trainers() < planned_ && now_ - started_ > options_.join_timeout) {
    if (trainers() == 0 && all_may_return()) {
      say_that_nobody_is_here();
    } else if (!goes_back_to_ || trainers() == 0) {
      return end(Ended::How::failed, "only " + std::to_string(trainers()) + " of " +
                                         std::to_string(planned_) +
                                         " replicas joined within network.join_timeout");
    } else {
      begin_with_fewer();
    }
  }
  seal_first_view_if_all_are_here();
  order_checkpoint_if_due();
  const auto still = std::ranges::find_if(
      observers_, [&](const auto& entry) { return now_ - entry.second.heard > options_.detect_timeout; });
  if (still != observers_.end()) drop_observer(still, "is silent for longer than network.detect_timeout");
  std::vector<std::string> silent;
  for (const auto& [name, member] : members_) {
    if (now_ - member.heard > options_.detect_timeout) silent.push_back(name);
  }
  if (!silent.empty()) return lose(silent, "is lost: silent for longer than network.detect_timeout");
  if (phase_ == Phase::changing) {
    const auto waiting = unanswered();
    if (waiting == 0 && leases_are_out() && !waits_for_newcomer()) return begin_view();
    if (waiting > 0 && now_ - change_began_ > options_.detect_timeout) return drop_silent_answers();
  }
  if (nobody_stops()) return end_without_state();
  note_survivors();
  if (state_is_lost()) go_back_to_checkpoints();
  if (phase_ == Phase::ended) return;
  if (gathering_until_ && now_ >= *gathering_until_) {
    gathering_until_.reset();
    if (members_.empty()) return;
    if (state_is_gone()) return begin_anew();
    return change_view("not all members of the last view are here");
  }
  const auto is_member = [this](const std::string& name) { return members_.contains(name); };
  if (const auto name = bars_.take_over(now_, is_member)) return change_view(*name + " may try again");
  look_whether_nobody_is_here();
}

void Coordinator::look_whether_nobody_is_here() {
  if (trainers() > 0) said_that_nobody_is_here_ = false;
  if (trainers() > 0 || phase_ == Phase::joining) return nobody_since_.reset();
  if (!nobody_since_) nobody_since_ = now_;
  if (now_ - *nobody_since_ <= options_.join_timeout) return;
  if (!all_may_return())
    return end(Ended::How::failed, "no replica has been here for network.join_timeout" +
                                       (last_lost_.empty() ? "" : " (" + last_lost_ + ")") +
                                       "; resume from the last checkpoint");
  say_that_nobody_is_here();
}

void Coordinator::say_that_nobody_is_here() {
  if (!std::exchange(said_that_nobody_is_here_, true))
    say("no replica has been here for network.join_timeout: waiting, since they may be training without the "
        "coordinator; `isthmus ctl stop` ends the run");
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

std::size_t Coordinator::count(Role role) const {
  return count([role](const MemberStatus& member) { return member.role == role; });
}
std::size_t Coordinator::trainers() const {
  return count([](const MemberStatus& member) { return trains(member); });
}
std::size_t Coordinator::participating() const {
  if (phase_ != Phase::running || !held_back_because_.empty()) return 0;
  return count([](const MemberStatus& member) { return member.role == Role::member && trains(member); });
}
const Coordinator::MemberStatus* Coordinator::first_trainer() const {
  const auto place = std::ranges::find_if(
      members_, [](const auto& entry) { return trains(entry.second) && !entry.second.has_nothing; });
  return place == members_.end() ? nullptr : &place->second;
}

}  // namespace isthmus::outer_sync::protocol
