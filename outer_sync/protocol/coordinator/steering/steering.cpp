#include "isthmus/outer_sync/protocol/coordinator/steering/steering.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace isthmus::outer_sync::protocol {
namespace {

using Json = nlohmann::ordered_json;
using What = ChangeRequest::What;
using Order = Steering::Order;

constexpr std::size_t max_arguments = 64;
std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

enum class Verb { status, set, pause, resume, checkpoint, drain, stop };

/// Empty for an unknown command.
std::optional<Verb> verb_of(const std::string& word) {
  constexpr std::array<std::string_view, 7> words{"status",     "set",   "pause", "resume",
                                                  "checkpoint", "drain", "stop"};
  const auto place = std::ranges::find(words, word);
  if (place == words.end()) return std::nullopt;
  return static_cast<Verb>(place - words.begin());
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

/// Why the command cannot be for this run; empty: it can.
std::string problem_of(const Command& command, const std::string& run) {
  if (command.protocol != protocol_version)
    return "the coordinator speaks protocol " + std::to_string(protocol_version) +
           " and this command protocol " + std::to_string(command.protocol) + "; use the same build";
  if (!command.run.empty() && command.run != run)
    return "this is run '" + run + "', not '" + command.run + "'";
  if (command.by.size() > 64 || command.arguments.size() > max_arguments)
    return "the name or the argument list is too long; expected at most 64 characters and 64 arguments";
  return {};
}

}  // namespace

// ---- commands ----

Order Steering::take(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out) {
  if (operators_.size() >= max_operators) {
    out.say_of_stranger("refused a command: " + std::to_string(max_operators) +
                        " commands are already waiting for an answer");
    out.close(from);
    return {};
  }
  operators_.insert(from);
  const auto refused = [&](const std::string& problem) {
    refuse(from, problem, out);
    return Order();
  };
  if (const auto problem = problem_of(command, run.options.run); !problem.empty()) return refused(problem);
  const auto verb = verb_of(command.verb);
  if (!verb)
    return refused("unknown command '" + command.verb +
                   "'; expected status, set, pause, resume, checkpoint, drain or stop");
  switch (*verb) {
    case Verb::status:
      out.add(StatusAsked{from});
      operators_.erase(from);
      return {};
    case Verb::set:
      return set(from, command, run, out);
    case Verb::drain:
      drain(from, command, run, out);
      return {};
    case Verb::checkpoint:
      return {Order::What::checkpoint, command.by};
    case Verb::stop:  // answered first: if the run has not begun, the stop ends it at once
      answer_text(from, json_text(Json{{"stopping", true}}), out);
      return {Order::What::stop, "asked to by " + command.by};
    case Verb::pause:
      if (paused())
        return refused("the run is paused already, after step " + std::to_string(settings_.pause_after));
      return request({.what = What::pause, .from = from, .by = command.by, .change = {}}, command.verb, run,
                     out);
    case Verb::resume:
      if (!paused()) return refused("the run is not paused");
      return request({.what = What::resume, .from = from, .by = command.by, .change = {}}, command.verb, run,
                     out);
  }
  return {};
}

Order Steering::set(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out) {
  const auto refused = [&](const std::string& problem) {
    refuse(from, problem, out);
    return Order();
  };
  const auto items = items_of(command.arguments);
  if (!items || items->empty()) return refused("expected at least one KEY=VALUE");
  const auto verdict = judge(*items);
  if (!verdict.problem.empty()) return refused(verdict.problem);
  if (verdict.at_once) {
    adjust(from, command, *items, run, out);
    return {};
  }
  const auto text = protocol::text_of(*items);
  if (!command.member.empty())
    return refused("--member applies only to keys that members set for themselves; omit it for " + text);
  for (const auto& [name, member] : run.roster.members()) {
    if (command.at > 0 && command.at < member.heartbeat.step)
      return refused(name + " is past step " + std::to_string(command.at) + " already, at step " +
                     std::to_string(member.heartbeat.step));
  }
  return request({.what = What::change, .from = from, .by = command.by, .change = {command.at, *items}}, text,
                 run, out);
}

Order Steering::request(ChangeRequest request, const std::string& why, const Situation& run,
                        ActionQueue& out) {
  if (!run.obstacle.empty()) {
    refuse(request.from, run.obstacle, out);
    return {};
  }
  auto line = request.by + " requests: " + why;
  out.say(line);
  changes_.add(std::move(request));
  return {Order::What::change_view, std::move(line)};
}

Order Steering::propose(const ConfigItems& items, const std::string& by, const std::string& why,
                        const Situation& run, ActionQueue& out) {
  if (!changes_.empty()) return {};
  const auto problem = run.obstacle.empty() ? judge(items).problem : run.obstacle;
  if (!problem.empty()) {
    out.say(by + " would set " + protocol::text_of(items) + " (" + why + "), but " + problem);
    return {};
  }
  return request({.what = What::change, .from = 0, .by = by, .change = {0, items}}, why, run, out);
}

void Steering::pause_by_coordinator() {
  changes_.add({.what = What::pause, .by = "the coordinator", .change = {}});
}

/// Judges a change together with all earlier and all pending changes.
ChangeVerdict Steering::judge(const ConfigItems& items) const {
  auto before = settings_;
  std::ranges::copy(changes_.pending_changes(), std::back_inserter(before.changes));
  return judge_.judge(before, items);
}

/// Takes effect at once, but not for members that come later: they have their own config file.
void Steering::adjust(ConnectionId from, const Command& command, const ConfigItems& items,
                      const Situation& run, ActionQueue& out) {
  const auto text = protocol::text_of(items);
  if (command.at > 0)
    return refuse(from,
                  "--at applies only to keys that all members share; " + text +
                      " is set by each member for itself, and takes effect at once",
                  out);
  auto told = Json::array();
  for (const auto& [name, member] : run.roster.members()) {
    if (!command.member.empty() && name != command.member && member.hello.site != command.member) continue;
    out.send(member.connection, Adjust{items});
    told.push_back(name);
  }
  if (told.empty()) return refuse(from, "no member or site is called '" + command.member + "'", out);
  out.say(command.by + " sets " + text + " at " + (command.member.empty() ? "all members" : command.member));
  answer_text(from, json_text(Json{{"set", text}, {"members", told}}), out);
}

void Steering::drain(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out) {
  if (command.arguments.empty()) return refuse(from, "expected the name of a worker or site", out);
  std::vector<const MemberStatus*> leave;
  for (const auto& argument : command.arguments) {
    const auto before = leave.size();
    for (const auto& [name, member] : run.roster.members()) {
      if (name == argument || member.hello.site == argument) leave.push_back(&member);
    }
    if (leave.size() == before) return refuse(from, "no worker or site is called '" + argument + "'", out);
  }
  std::ranges::sort(leave);
  leave.erase(std::unique(leave.begin(), leave.end()), leave.end());
  const auto trainers_leaving = static_cast<std::size_t>(
      std::ranges::count_if(leave, [](const auto* member) { return trains(*member); }));
  const auto left = run.roster.trainers() - trainers_leaving;
  const auto least = run.options.min_replicas();
  if (trainers_leaving > 0 && (left < least || !run.options.elastic))
    return refuse(from,
                  std::to_string(left) + " replicas would be left, and rounds need " +
                      std::to_string(run.options.elastic ? least : run.options.replicas) +
                      "; stop the run instead (isthmus ctl stop)",
                  out);
  auto names = Json::array();
  for (const auto* member : leave) {
    out.say(command.by + " asks " + member->hello.member.name + " to leave");
    out.send(member->connection, Drain{"asked to by " + command.by});
    names.push_back(member->hello.member.name);
  }
  answer_text(from, json_text(Json{{"draining", names}}), out);
}

// ---- agreement: a view brings the change ----

void Steering::learn(ViewNumber number, const Settings& settings) {
  if (number <= settings_view_) return;
  settings_view_ = number;
  settings_ = settings;
}

Settings Steering::settings_of_view(Settings settings, ViewNumber number, std::uint64_t reach,
                                    std::uint64_t steps, ActionQueue& out) {
  for (const auto& [request, problem] : changes_.put_into(settings, number, reach, steps)) {
    if (request.from == 0) out.say(request.by + " changes nothing: " + problem);
    refuse(request.from, problem, out);
  }
  return settings;
}

void Steering::report(ActionQueue& out) {
  for (const auto& request : changes_.take_begun()) {
    const auto step = std::to_string(request.step);
    if (request.what == What::change) {
      const auto items = protocol::text_of(request.change.items);
      out.say(items + " takes effect after step " + step + " (" + request.by + ")");
      answer_text(request.from, json_text(Json{{"set", items}, {"after_step", request.step}}), out);
    } else if (request.what == What::pause) {
      out.say("paused after step " + step + " (" + request.by + ")");
      answer(request.from, "paused_after_step", request.step, out);
    } else {
      out.say("resumed (" + request.by + ")");
      answer_text(request.from, json_text(Json{{"resumed", true}}), out);
    }
  }
}

void Steering::drop(const std::string& why, ActionQueue& out) {
  for (const auto& request : changes_.take_pending()) refuse(request.from, why, out);
}

// ---- answers ----

void Steering::answer(ConnectionId to, const char* key, std::uint64_t value, ActionQueue& out) {
  answer_text(to, json_text(Json{{key, value}}), out);
}

void Steering::answer_text(ConnectionId to, std::string text, ActionQueue& out) {
  if (operators_.erase(to) == 0) return;  // the operator did not wait
  out.send(to, Answer{{}, std::move(text)});
  out.close(to);
}

void Steering::refuse(ConnectionId to, const std::string& problem, ActionQueue& out) {
  if (operators_.erase(to) == 0) return;
  out.send(to, Answer{problem, {}});
  out.close(to);
}

}  // namespace isthmus::outer_sync::protocol
