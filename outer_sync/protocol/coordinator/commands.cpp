// Commands of operators (docs/protocol.md, Steering).

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t max_arguments = 64;
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string text_of(const ConfigItems& items) {
  std::string text;
  for (const auto& [key, value] : items) text += (text.empty() ? "" : ", ") + key + "=" + value;
  return text;
}

/// Empty if one of them is not KEY=VALUE.
std::optional<ConfigItems> items_of(const std::vector<std::string>& assignments) {
  ConfigItems items;
  for (const auto& assignment : assignments) {
    const auto equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) return std::nullopt;
    items.emplace_back(assignment.substr(0, equals), assignment.substr(equals + 1));
  }
  return items;
}

}  // namespace

bool is_operator(const std::string& name) {
  return name == operator_name || name.starts_with(std::string(operator_name) + "-");
}

// ---- commands ----

void Coordinator::on_command(ConnectionId from, const Command& command) {
  if (operators_.size() >= max_operators) {
    say_of_stranger("refused a command: " + std::to_string(max_operators) +
                    " commands are already waiting for an answer");
    return close(from);
  }
  operators_.insert(from);
  if (command.protocol != protocol_version)
    return refuse_command(from, "the coordinator speaks protocol " + std::to_string(protocol_version) +
                                    " and this command protocol " + std::to_string(command.protocol) +
                                    "; use the same build");
  if (!command.run.empty() && command.run != options_.run)
    return refuse_command(from, "this is run '" + options_.run + "', not '" + command.run + "'");
  if (command.by.size() > 64 || command.arguments.size() > max_arguments)
    return refuse_command(
        from, "the name or the argument list is too long; expected at most 64 characters and 64 arguments");
  if (command.verb == "status") {
    actions_.emplace_back(StatusAsked{from});
    operators_.erase(from);
    return;
  }
  if (command.verb == "set") return on_set(from, command);
  if (command.verb == "drain") return on_drain(from, command);
  if (command.verb == "checkpoint") return on_checkpoint(from, command);
  if (command.verb == "stop") return on_stop(from, command);
  const bool pauses = command.verb == "pause", resumes = command.verb == "resume";
  if (!pauses && !resumes)
    return refuse_command(from, "unknown command '" + command.verb +
                                    "'; expected status, set, pause, resume, checkpoint, drain or stop");
  const bool paused = settings_.pause_after != Settings::never;
  if (pauses && paused)
    return refuse_command(from,
                          "the run is paused already, after step " + std::to_string(settings_.pause_after));
  if (resumes && !paused) return refuse_command(from, "the run is not paused");
  const auto what = pauses ? ChangeRequest::What::pause : ChangeRequest::What::resume;
  request_change({.what = what, .from = from, .by = command.by, .change = {}}, command.verb);
}

void Coordinator::on_checkpoint(ConnectionId from, const Command& command) {
  if (const auto problem = order_checkpoint(command.by); !problem.empty())
    return refuse_command(from, problem);
  answer(from, text_of(Json{{"checkpoint_after_step", checkpoints_.ordered()}}));
}

/// Answers first: if the run has not begun, the stop ends it at once.
void Coordinator::on_stop(ConnectionId from, const Command& command) {
  answer(from, text_of(Json{{"stopping", true}}));
  request_stop("asked to by " + command.by);
}

void Coordinator::on_set(ConnectionId from, const Command& command) {
  const auto items = items_of(command.arguments);
  if (!items || items->empty()) return refuse_command(from, "expected at least one KEY=VALUE");
  const auto verdict = judge(*items);
  if (!verdict.problem.empty()) return refuse_command(from, verdict.problem);
  if (verdict.at_once) return adjust(from, command, *items);
  if (!command.member.empty())
    return refuse_command(
        from,
        "--member applies only to keys that members set for themselves; omit it for " + text_of(*items));
  for (const auto& [name, member] : members_) {
    if (command.at > 0 && command.at < member.heartbeat.step)
      return refuse_command(from, name + " is past step " + std::to_string(command.at) +
                                      " already, at step " + std::to_string(member.heartbeat.step));
  }
  request_change(
      {.what = ChangeRequest::What::change, .from = from, .by = command.by, .change = {command.at, *items}},
      text_of(*items));
}

/// Judges a change together with all earlier and all pending changes.
ChangeVerdict Coordinator::judge(const ConfigItems& items) const {
  const auto refused = [](std::string why) { return ChangeVerdict{std::move(why), false}; };
  if (!Settings{.changes = {{0, items}}}.sound())
    return refused("too many or too long changes; expected at most " + std::to_string(Settings::max_items) +
                   " keys at a time, and keys and values of at most " +
                   std::to_string(Settings::longest_text) + " characters");
  if (!options_.judge) return refused("this run accepts no changes of settings");
  auto before = settings_;
  std::ranges::copy(changes_.pending_changes(), std::back_inserter(before.changes));
  auto verdict = options_.judge(before, items);
  if (!verdict.problem.empty() || verdict.at_once) return verdict;
  before.changes.push_back({before.changes.empty() ? 0 : before.changes.back().step, items});
  if (!before.sound())
    return refused(
        "this run has reached the limit of changes; stop it, write the values into its config file, and "
        "start another run from its checkpoint");
  return verdict;
}

/// Judges each change together with the changes before it, like an operator's command.
std::string Coordinator::problem_of_settings(const Settings& settings) const {
  if (settings == judged_) return {};
  Settings before;
  for (const auto& change : settings.changes) {
    const auto verdict = options_.judge ? options_.judge(before, change.items)
                                        : ChangeVerdict{"this run accepts no changes of settings", false};
    if (!verdict.problem.empty()) return "settings that no operator can have set: " + verdict.problem;
    if (verdict.at_once)
      return "settings that no operator can have set: " + text_of(change.items) +
             " is set by each member for itself";
    before.changes.push_back(change);
  }
  judged_ = settings;
  return {};
}

/// Validates the settings with which, by a member's report, a view began. Only operators change settings:
/// those of a view that this coordinator remembers must be equal, and others, which it learns from the
/// members, are judged.
std::string Coordinator::problem_of_report(ViewNumber view, const Settings& settings) const {
  if (view == 0) return {};  // of a checkpoint: compared and judged for the first view
  const auto known = announced_.find(view);
  if (known == announced_.end()) return problem_of_settings(settings);
  return settings == known->second.settings
             ? std::string()
             : "settings of view " + std::to_string(view) + " other than the announced ones";
}

/// Like an operator's command, but without an answer.
void Coordinator::propose(const ConfigItems& items, const std::string& by, const std::string& why) {
  if (!changes_.empty()) return;
  auto problem = reason_not_to_change();
  if (problem.empty()) problem = judge(items).problem;
  if (!problem.empty()) return say(by + " would set " + text_of(items) + " (" + why + "), but " + problem);
  request_change({.what = ChangeRequest::What::change, .from = 0, .by = by, .change = {0, items}}, why);
}

/// Takes effect at once, but not for members that come later: they have their own config file.
void Coordinator::adjust(ConnectionId from, const Command& command, const ConfigItems& items) {
  if (command.at > 0)
    return refuse_command(from, "--at applies only to keys that all members share; " + text_of(items) +
                                    " is set by each member for itself, and takes effect at once");
  auto told = Json::array();
  for (const auto& [name, member] : members_) {
    if (!command.member.empty() && name != command.member && member.hello.site != command.member) continue;
    send(member, Adjust{items});
    told.push_back(name);
  }
  if (told.empty()) return refuse_command(from, "no member or site is called '" + command.member + "'");
  say(command.by + " sets " + text_of(items) + " at " +
      (command.member.empty() ? "all members" : command.member));
  answer(from, text_of(Json{{"set", text_of(items)}, {"members", told}}));
}

void Coordinator::on_drain(ConnectionId from, const Command& command) {
  if (command.arguments.empty()) return refuse_command(from, "expected the name of a worker or site");
  std::vector<const MemberStatus*> leave;
  for (const auto& argument : command.arguments) {
    const auto before = leave.size();
    for (const auto& [name, member] : members_) {
      if (name == argument || member.hello.site == argument) leave.push_back(&member);
    }
    if (leave.size() == before) return refuse_command(from, "no worker or site is called '" + argument + "'");
  }
  std::ranges::sort(leave);
  leave.erase(std::unique(leave.begin(), leave.end()), leave.end());
  const auto trainers_leaving = static_cast<std::size_t>(
      std::ranges::count_if(leave, [](const auto* member) { return trains(*member); }));
  const auto left = trainers() - trainers_leaving;
  const auto least = std::max<std::size_t>(options_.least, 1);
  if (trainers_leaving > 0 && (left < least || !options_.elastic))
    return refuse_command(from, std::to_string(left) + " replicas would be left, and rounds need " +
                                    std::to_string(options_.elastic ? least : options_.replicas) +
                                    "; stop the run instead (isthmus ctl stop)");
  auto names = Json::array();
  for (const auto* member : leave) {
    say(command.by + " asks " + member->hello.member.name + " to leave");
    send(*member, Drain{"asked to by " + command.by});
    names.push_back(member->hello.member.name);
  }
  answer(from, text_of(Json{{"draining", names}}));
}

// ---- agreement: a view brings the change ----

std::string Coordinator::reason_not_to_change() const {
  if (!options_.elastic) return "a data-parallel run has no views, so its settings cannot change";
  if (stopping_ || ending_) return "the run is ending";
  if (phase_ == Phase::joining) return "the run has not begun yet";
  if (phase_ == Phase::suspended) return "rounds do not commit at present: " + suspended_because_;
  return {};
}

void Coordinator::request_change(ChangeRequest request, const std::string& why) {
  if (auto reason = reason_not_to_change(); !reason.empty()) return refuse_command(request.from, reason);
  const auto line = request.by + " requests: " + why;
  say(line);
  changes_.add(std::move(request));
  change_view(line);
}

/// The settings of the reference, and all requested changes.
Settings Coordinator::settings_of_next_view(const ViewPlan& plan) {
  auto settings = plan.message.settings;
  std::uint64_t reach = 0;
  for (const auto& [name, member] : members_) {
    if (member.answered && trains(member)) reach = std::max(reach, member.state.reach);
  }
  if (phase_ == Phase::joining) reach = resumed_from_;  // no member has made a step since then
  for (const auto& [request, problem] : changes_.put_into(settings, number_, reach, options_.steps)) {
    if (request.from == 0) say(request.by + " changes nothing: " + problem);
    refuse_command(request.from, problem);
  }
  return settings;
}

/// Replicas that copy the state, and observers, follow rounds made under these settings.
void Coordinator::tell_followers() {
  for (const auto& [name, member] : members_) {
    if (member.role == Role::joining && member.admitted) send(member, Steered{settings_});
  }
  for (const auto& [connection, observer] : observers_)
    actions_.emplace_back(SendControl{connection, Steered{settings_}});
}

/// A member has begun that view, so its settings are the run's.
void Coordinator::report_changes(ViewNumber begun) {
  if (begun != number_ || phase_ != Phase::running) return;
  for (const auto& request : changes_.take_begun()) {
    using What = ChangeRequest::What;
    const auto step = std::to_string(request.step);
    if (request.what == What::change) {
      const auto items = text_of(request.change.items);
      say(items + " takes effect after step " + step + " (" + request.by + ")");
      answer(request.from, text_of(Json{{"set", items}, {"after_step", request.step}}));
    } else if (request.what == What::pause) {
      say("paused after step " + step + " (" + request.by + ")");
      answer(request.from, text_of(Json{{"paused_after_step", request.step}}));
    } else {
      say("resumed (" + request.by + ")");
      answer(request.from, text_of(Json{{"resumed", true}}));
    }
  }
}

/// Drops changes that no view has announced.
void Coordinator::drop_changes(const std::string& why) {
  for (const auto& request : changes_.take_pending()) refuse_command(request.from, why);
}

// ---- answers ----

void Coordinator::answer(ConnectionId to, const std::string& text) {
  if (operators_.erase(to) == 0) return;  // the operator did not wait
  actions_.emplace_back(SendControl{to, Answer{{}, text}});
  close(to);
}

void Coordinator::refuse_command(ConnectionId to, const std::string& problem) {
  if (operators_.erase(to) == 0) return;
  actions_.emplace_back(SendControl{to, Answer{problem, {}}});
  close(to);
}

// ---- status of the run ----

RunPhase Coordinator::run_phase() const {
  if (phase_ == Phase::joining) return RunPhase::joining;
  if (phase_ == Phase::changing) return RunPhase::changing_view;
  if (phase_ == Phase::ended) return RunPhase::ended;
  if (!obstacle().empty()) return RunPhase::suspended;
  return settings_.pause_after == Settings::never ? RunPhase::running : RunPhase::paused;
}

std::string_view name_of(RunPhase phase) {
  constexpr std::array<std::string_view, 6> names{"joining", "changing view", "running",
                                                  "paused",  "suspended",     "ended"};
  return names.at(static_cast<std::size_t>(phase));
}

std::vector<Round> Coordinator::lag_of(const MemberStatus& member) const {
  std::vector<Round> newest;
  for (const auto& [name, other] : members_) {
    const auto& reported = other.heartbeat.fragments;
    newest.resize(std::max(newest.size(), reported.size()), 0);
    for (std::size_t p = 0; p < reported.size(); ++p) newest[p] = std::max(newest[p], reported[p].first);
  }
  const auto& own = member.heartbeat.fragments;
  for (std::size_t p = 0; p < newest.size(); ++p) newest[p] -= p < own.size() ? own[p].first : 0;
  return newest;
}

}  // namespace isthmus::outer_sync::protocol
