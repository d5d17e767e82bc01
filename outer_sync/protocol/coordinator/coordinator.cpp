#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

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
         std::holds_alternative<Records>(message) || std::holds_alternative<CalendarChanged>(message);
}

bool is_a_members(const ControlMessage& message) {
  return is_a_reducers(message) || std::holds_alternative<Ready>(message) ||
         std::holds_alternative<EvalReport>(message) || std::holds_alternative<CheckpointRequest>(message) ||
         std::holds_alternative<Announce>(message) || std::holds_alternative<Held>(message);
}

/// Checks that need to know which views have begun, and for which members.
std::string breach_of(const MemberStatus& member, const ControlMessage& message,
                      const AnnouncedViews& announced, const SettingsJudge& judge) {
  ViewNumber view = 0;
  if (const auto* beat = std::get_if<Heartbeat>(&message)) view = beat->view;
  if (const auto* sealed = std::get_if<Sealed>(&message)) {
    view = sealed->activated;
    if (trains(member) && sealed->layout.empty()) return "a trainer without a layout";
    if (auto problem = problem_of_report(view, sealed->settings, announced, judge); !problem.empty())
      return problem;
  }
  return may_have_begun(member.hello, view, announced)
             ? std::string()
             : "view " + std::to_string(view) + ", which has not begun for it";
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, Time started)
    : options_(std::move(options)),
      now_(started),
      phase_(options_.last || options_.recover ? Phase(phase::Suspended{})
                                               : Phase(phase::Gathering{.since = started})),
      first_view_{.planned = options_.replicas},
      recovery_{
          .token_is_known = options_.last || !options_.recover, .own_token = options_.token, .had_state = {}},
      steering_(options_),
      checkpoints_(options_.checkpoint_interval) {
  roster_.advance(started);
  if (!options_.last && !options_.recover) return;
  if (options_.last) {
    number_ = options_.last->number;
    options_.token = options_.last->token;
    steering_.learn(options_.last->number, options_.last->settings);
    checkpoints_.begin_with(options_.last->checkpoint);
    if (!options_.recover) announced_.add(*options_.last);
    for (const auto& member : options_.last->members) {
      if (trains(member)) roster_.keep_slot(member.name, member.slot);
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

// ---- incoming messages ----

void Coordinator::receive(ConnectionId from, Time now, const ControlMessage& message) {
  if (is<phase::Over>()) return;
  now_ = std::max(now_, now);
  roster_.advance(now_);
  if (observers_.contains(from))
    return observers_.receive(from, message, now_, bounds(), reports_.chains, newest_of_donors(), out_);
  const auto name = roster_.name_of(from);
  if (name.empty()) {
    if (out_.is_closing(from)) return;  // in transit when the connection was given up
    if (const auto* command = std::get_if<Command>(&message))
      return carry_out(steering_.take(from, *command, situation(), out_), from);
    if (const auto* hello = std::get_if<Hello>(&message)) return on_hello(from, *hello);
    out_.say_of_stranger("dropped a connection that did not begin with a hello");
    return out_.close(from);
  }
  roster_.members().at(name).heard = now_;
  on_message(name, message);
}

void Coordinator::on_message(const std::string& name, const ControlMessage& message) {
  auto& member = roster_.members().at(name);
  if (!is_a_members(message) || (!trains(member) && !is_a_reducers(message))) {
    out_.say(name + " sent a message that " +
             (is_a_members(message) ? "reducers do not send" : "members do not send") + "; dropped");
    return out_.close(member.connection);
  }
  auto problem = problem_of_message(message, bounds());
  if (problem.empty()) problem = breach_of(member, message, announced_, steering_.judge());
  if (!problem.empty()) return drop_for(name, problem);
  std::visit(
      Overloaded{
          [&](const Sealed& sealed) { on_sealed(member, sealed); },
          [&](const Heartbeat& heartbeat) { on_heartbeat(member, heartbeat); },
          [&](const Ready&) { on_ready(member); },
          [&](const CalendarChanged& changed) { on_calendar(member, changed); },
          [&](const Evicted& evicted) {
            evict(name, evicted.reason);
            change_view(name + " has rounds outside the run's history");
          },
          [&](const EvalReport& report) {
            if (reports_.evaluations.add(name, report)) settle_evaluations();
          },
          [&](const Announce& announce) { broadcast(announce); },
          [&](const StopRequest& request) { request_stop(request.reason + " (" + name + ")"); },
          [&](const CheckpointRequest& request) { request_checkpoint(name, request.reason); },
          [&](const Held& held) {
            if (!ending_.stopping || member.held) return;
            member.held = true;
            member.held_step = held.step;
            settle_stop();
          },
          [&](const Done& done) { on_done(member, done); },
          [&](const Leave& leave) { lose({name}, "left: " + leave.reason, true); },
          [&](const Records& records) {
            // A new coordinator does not know which records the previous one has stored, and starts where the
            // member does.
            const auto& info = member.hello.member;
            if (auto news = reports_.records.add(info, records))
              out_.add(Gathered{info.name, info.incarnation, news->left_out, std::move(news->records)});
            out_.send(member.connection, RecordsTaken{reports_.records.next(info)});
          },
          [](const auto&) {},
      },
      message);
}

Bounds Coordinator::bounds() const {
  // A run that begins anew may have another model.
  return {.steps = options_.steps, .layout = layout_ && !gathers() ? &*layout_ : nullptr};
}

// ---- time ----

void Coordinator::tick(Time now) {
  if (is<phase::Over>()) return;
  now_ = std::max(now_, now);
  roster_.advance(now_);
  check_join_timeout();
  if (is<phase::Over>()) return;
  seal_first_view_if_all_are_here();
  order_checkpoint_if_due();
  observers_.drop_silent(now_, options_.detect_timeout, out_);
  if (lose_silent()) return;
  if (is<phase::Changing>() && may_begin_view()) return begin_view();
  if (lose_unanswered()) return;
  if (must_end_without_state()) return end_without_state();
  note_survivors();
  repeat_warmup_if_stuck();
  if (state_is_lost()) go_back_to_checkpoints();
  if (is<phase::Over>()) return;
  if (gathering_until_ && now_ >= *gathering_until_) {
    gathering_until_.reset();
    if (members().empty()) return;
    if (state_is_gone()) return begin_anew();
    return change_view("not all members of the last view are here");
  }
  if (const auto name = roster_.take_bar_over()) return change_view(*name + " may try again");
  end_if_trainers_stay_away();
}

/// Once all replicas are here, they may load for as long as they send heartbeats.
void Coordinator::check_join_timeout() {
  auto* gathering = std::get_if<phase::Gathering>(&phase_);
  if (gathering == nullptr || trainers() >= first_view_.planned ||
      now_ - gathering->since <= options_.join_timeout)
    return;
  if (trainers() == 0 && all_may_return()) return say_that_no_trainer_is_here();
  if (!first_view_.goes_back_to || trainers() == 0)
    return end(Ended::How::failed, "only " + std::to_string(trainers()) + " of " +
                                       std::to_string(first_view_.planned) +
                                       " replicas joined within network.join_timeout");
  // A replica planned for the first view has died meanwhile and has not come back.
  first_view_.planned = std::max(trainers(), options_.min_replicas());
  gathering->since = now_;
}

void Coordinator::broadcast(const ControlMessage& message) {
  for (const auto& [name, member] : roster_.members()) out_.send(member.connection, message);
}

void Coordinator::send_to_trainers(const ControlMessage& message) {
  for (const auto& [name, member] : roster_.members()) {
    if (trains(member)) out_.send(member.connection, message);
  }
}

// ---- status of the run ----

std::size_t Coordinator::participating() const {
  if (!is<phase::Running>() || !held_back_because_.empty()) return 0;
  return roster_.count(
      [](const MemberStatus& member) { return member.role == Role::member && trains(member); });
}

std::string Coordinator::obstacle() const {
  const auto* suspended = std::get_if<phase::Suspended>(&phase_);
  return suspended != nullptr ? suspended->because.text : held_back_because_;
}

RunPhase Coordinator::run_phase() const {
  if (gathers()) return RunPhase::joining;
  if (is<phase::Changing>()) return RunPhase::changing_view;
  if (is<phase::Over>()) return RunPhase::ended;
  if (!obstacle().empty()) return RunPhase::suspended;
  return steering_.paused() ? RunPhase::paused : RunPhase::running;
}

std::string_view name_of(RunPhase phase) {
  constexpr std::array<std::string_view, 6> names{"joining", "changing view", "running",
                                                  "paused",  "suspended",     "ended"};
  return names.at(static_cast<std::size_t>(phase));
}

std::vector<Round> Coordinator::lag_of(const MemberStatus& member) const {
  std::vector<Round> newest;
  for (const auto& [name, other] : roster_.members()) raise(newest, reported_rounds(other));
  const auto own = reported_rounds(member);
  for (std::size_t p = 0; p < newest.size(); ++p) newest[p] -= p < own.size() ? own[p] : 0;
  return newest;
}

}  // namespace isthmus::outer_sync::protocol
