// What operators ask of a coordinator (docs/protocol.md, Steering).

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "protocol/coordinator/members.h"

namespace isthmus::outer_sync::protocol {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t max_arguments = 64;
constexpr std::uint64_t highest_step = std::uint64_t{1} << 60;

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string text_of(const ConfigItems& items) {
  std::string text;
  for (const auto& [key, value] : items) text += (text.empty() ? "" : ", ") + key + "=" + value;
  return text;
}

/// Empty where one is no KEY=VALUE.
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

// ---- what is asked for ----

void Coordinator::on_command(ConnectionId from, const Command& command) {
  if (operators_.size() >= max_operators) {
    say_of_stranger("refused a command: " + std::to_string(max_operators) + " wait for an answer already");
    return close(from);
  }
  operators_.insert(from);
  if (command.protocol != protocol_version)
    return refuse_command(from, "the coordinator speaks protocol " + std::to_string(protocol_version) +
                                    " and this command is of " + std::to_string(command.protocol) +
                                    "; use the same build");
  if (!command.run.empty() && command.run != options_.run)
    return refuse_command(from, "this is run '" + options_.run + "', not '" + command.run + "'");
  if (command.by.size() > 64 || command.arguments.size() > max_arguments)
    return refuse_command(from, "a name or a list that is too long");
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
  const auto what = pauses ? Wish::What::pause : Wish::What::resume;
  wish({.what = what, .from = from, .by = command.by, .change = {}}, command.verb);
}

void Coordinator::on_checkpoint(ConnectionId from, const Command& command) {
  if (const auto problem = order_checkpoint(command.by); !problem.empty())
    return refuse_command(from, problem);
  answer(from, text_of(Json{{"checkpoint_after_step", checkpoint_ordered_}}));
}

/// Answered first: of a run that has not begun nothing is left afterwards.
void Coordinator::on_stop(ConnectionId from, const Command& command) {
  answer(from, text_of(Json{{"stopping", true}}));
  request_stop("asked to by " + command.by);
}

void Coordinator::on_set(ConnectionId from, const Command& command) {
  const auto items = items_of(command.arguments);
  if (!items || items->empty()) return refuse_command(from, "expected KEY=VALUE, once at least");
  const auto verdict = judge(*items);
  if (!verdict.problem.empty()) return refuse_command(from, verdict.problem);
  if (verdict.at_once) return adjust(from, command, *items);
  if (!command.member.empty())
    return refuse_command(
        from, "--member is for keys that are each member's own; expected none with " + text_of(*items));
  for (const auto& [name, member] : members_) {
    if (command.at > 0 && command.at < member.heartbeat.step)
      return refuse_command(from, name + " is past step " + std::to_string(command.at) + " already, at " +
                                      std::to_string(member.heartbeat.step));
  }
  wish({.what = Wish::What::change, .from = from, .by = command.by, .change = {command.at, *items}},
       text_of(*items));
}

/// Beside what was changed before, and what others ask for.
ChangeVerdict Coordinator::judge(const ConfigItems& items) const {
  const auto refused = [](std::string why) { return ChangeVerdict{std::move(why), false}; };
  if (!Settings{.changes = {{0, items}}}.sound())
    return refused("at most " + std::to_string(Settings::max_items) + " keys of " +
                   std::to_string(Settings::longest_text) + " characters at one time");
  if (!options_.judge) return refused("nothing can be changed in this run");
  auto before = settings_;
  for (const auto& wish : wishes_) {
    if (wish.what == Wish::What::change && wish.in == 0) before.changes.push_back(wish.change);
  }
  auto verdict = options_.judge(before, items);
  if (!verdict.problem.empty() || verdict.at_once) return verdict;
  before.changes.push_back({before.changes.empty() ? 0 : before.changes.back().step, items});
  if (!before.sound())
    return refused(
        "as much was changed in this run as can be; stop it, write the values into its config file, and "
        "begin another one from its checkpoint");
  return verdict;
}

/// Each change beside those before it, as when an operator asked for it.
std::string Coordinator::problem_of_settings(const Settings& settings) const {
  if (settings == judged_) return {};
  Settings before;
  for (const auto& change : settings.changes) {
    const auto verdict = options_.judge ? options_.judge(before, change.items)
                                        : ChangeVerdict{"nothing can be changed in this run", false};
    if (!verdict.problem.empty()) return "settings that no operator can have made: " + verdict.problem;
    if (verdict.at_once)
      return "settings that no operator can have made: " + text_of(change.items) + " is each member's own";
    before.changes.push_back(change);
  }
  judged_ = settings;
  return {};
}

/// What a member says that a view began with. Settings are an operator's to make: those of a view that this
/// coordinator remembers are known, and others, which it has to learn from the members, are judged.
std::string Coordinator::problem_of_report(ViewNumber view, const Settings& settings) const {
  if (view == 0) return {};  // of a checkpoint: the first view compares and judges them
  const auto known = announced_.find(view);
  if (known == announced_.end()) return problem_of_settings(settings);
  return settings == known->second.settings
             ? std::string()
             : "other settings of view " + std::to_string(view) + " than were announced with it";
}

/// Nobody waits for an answer.
void Coordinator::propose(const ConfigItems& items, const std::string& by, const std::string& why) {
  if (!wishes_.empty()) return;
  auto problem = reason_not_to_change();
  if (problem.empty()) problem = judge(items).problem;
  if (!problem.empty()) return say(by + " would set " + text_of(items) + " (" + why + "), but " + problem);
  wish({.what = Wish::What::change, .from = 0, .by = by, .change = {0, items}}, why);
}

/// At once, and not for those who come later: they have their own config file.
void Coordinator::adjust(ConnectionId from, const Command& command, const ConfigItems& items) {
  if (command.at > 0)
    return refuse_command(from, "--at is for keys that all share; " + text_of(items) +
                                    " is each member's own and holds at once");
  auto told = Json::array();
  for (const auto& [name, member] : members_) {
    if (!command.member.empty() && name != command.member && member.hello.site != command.member) continue;
    send(member, Adjust{items});
    told.push_back(name);
  }
  if (told.empty()) return refuse_command(from, "there is no member and no site '" + command.member + "'");
  say(command.by + " sets " + text_of(items) + " at " + (command.member.empty() ? "all" : command.member));
  answer(from, text_of(Json{{"set", text_of(items)}, {"members", told}}));
}

void Coordinator::on_drain(ConnectionId from, const Command& command) {
  if (command.arguments.empty()) return refuse_command(from, "expected the name of a worker or of a site");
  std::vector<const MemberStatus*> leave;
  for (const auto& argument : command.arguments) {
    const auto before = leave.size();
    for (const auto& [name, member] : members_) {
      if (name == argument || member.hello.site == argument) leave.push_back(&member);
    }
    if (leave.size() == before)
      return refuse_command(from, "there is no worker and no site '" + argument + "'");
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

// ---- agreement: a change comes with a view ----

std::string Coordinator::reason_not_to_change() const {
  if (!options_.elastic) return "a data-parallel run has no views, and goes on as it began";
  if (stopping_ || ending_) return "the run is ending";
  if (phase_ == Phase::joining) return "the run has not begun yet";
  if (phase_ == Phase::suspended) return "rounds do not commit at present: " + suspended_because_;
  return {};
}

void Coordinator::wish(Wish wish, const std::string& why) {
  if (auto reason = reason_not_to_change(); !reason.empty()) return refuse_command(wish.from, reason);
  const auto line = wish.by + " asks for: " + why;
  say(line);
  wishes_.push_back(std::move(wish));
  change_view(line);
}

/// Puts it into the settings that a view begins with; returns why it cannot be, and changes nothing then.
/// No member's step is past `reach` before that view has begun for it, so nothing at or before that is
/// changed under anybody.
std::string Coordinator::grant(Wish& wish, Settings& settings, std::uint64_t reach) const {
  using What = Wish::What;
  if (wish.what == What::resume) {
    settings.pause_after = Settings::never;
    wish.step = reach;
    return {};
  }
  const auto earliest =
      std::max(reach, settings.changes.empty() ? std::uint64_t{0} : settings.changes.back().step);
  if (reach >= highest_step) return "not all replicas have begun their first step in this view; try again";
  const auto step = std::max(earliest, wish.change.step);
  if (wish.change.step > 0 && wish.change.step < earliest)
    return "step " + std::to_string(wish.change.step) + " may be past before all know; the first is " +
           std::to_string(earliest);
  if (options_.steps > 0 && step >= options_.steps)
    return "it could hold from the step after " + std::to_string(step) + " on, and the run ends at " +
           std::to_string(options_.steps);
  wish.step = step;
  if (wish.what == What::pause) settings.pause_after = step;
  if (wish.what == What::change) settings.changes.push_back({step, wish.change.items});
  return {};
}

/// What was announced is in there.
bool Coordinator::holds(const Wish& wish, const Settings& settings) {
  const bool paused = settings.pause_after != Settings::never;
  switch (wish.what) {
    case Wish::What::pause:
      return paused;
    case Wish::What::resume:
      return !paused;
    case Wish::What::change:
      return std::ranges::find(settings.changes, Change{wish.step, wish.change.items}) !=
             settings.changes.end();
  }
  return false;
}

/// Those of the view of reference, and what is asked for beside them. What was announced with a view that
/// began nowhere comes once more.
Settings Coordinator::settings_of_next_view(const ViewPlan& plan) {
  auto settings = plan.message.settings;
  std::uint64_t reach = 0;
  for (const auto& [name, member] : members_) {
    if (member.answered && trains(member)) reach = std::max(reach, member.state.reach);
  }
  if (phase_ == Phase::joining) reach = resumed_from_;  // nobody has made a step from there
  for (auto at = wishes_.begin(); at != wishes_.end();) {
    auto& wish = *at;
    if (wish.in > 0 && holds(wish, settings)) {  // from a view that has begun meanwhile
      ++at;
      continue;
    }
    const auto problem = grant(wish, settings, reach);
    if (problem.empty()) {
      wish.in = number_;
      ++at;
      continue;
    }
    if (wish.from == 0) say(wish.by + " changes nothing: " + problem);
    refuse_command(wish.from, problem);
    at = wishes_.erase(at);
  }
  return settings;
}

/// Whoever takes the state follows rounds that are made under these, before it is in a view itself.
void Coordinator::tell_followers() {
  for (const auto& [name, member] : members_) {
    if (member.role == Role::joining && member.admitted) send(member, Steered{settings_});
  }
  for (const auto& [connection, observer] : observers_)
    actions_.emplace_back(SendControl{connection, Steered{settings_}});
}

/// A member has begun that view: what came with it is the run's.
void Coordinator::settle_wishes(ViewNumber begun) {
  if (begun != number_ || phase_ != Phase::running) return;
  for (const auto& wish : wishes_) {
    using What = Wish::What;
    if (wish.in == 0) continue;
    const auto step = std::to_string(wish.step);
    if (wish.what == What::change) {
      const auto items = text_of(wish.change.items);
      say(items + " from the step after " + step + " on (" + wish.by + ")");
      answer(wish.from, text_of(Json{{"set", items}, {"after_step", wish.step}}));
    } else if (wish.what == What::pause) {
      say("paused after step " + step + " (" + wish.by + ")");
      answer(wish.from, text_of(Json{{"paused_after_step", wish.step}}));
    } else {
      say("goes on (" + wish.by + ")");
      answer(wish.from, text_of(Json{{"resumed", true}}));
    }
  }
  std::erase_if(wishes_, [](const Wish& wish) { return wish.in > 0; });
}

/// Those that no view was announced with.
void Coordinator::drop_wishes(const std::string& why) {
  for (const auto& wish : wishes_) {
    if (wish.in == 0) refuse_command(wish.from, why);
  }
  std::erase_if(wishes_, [](const Wish& wish) { return wish.in == 0; });
}

// ---- answers ----

void Coordinator::answer(ConnectionId to, const std::string& text) {
  if (operators_.erase(to) == 0) return;  // he has not waited
  actions_.emplace_back(SendControl{to, Answer{{}, text}});
  close(to);
}

void Coordinator::refuse_command(ConnectionId to, const std::string& problem) {
  if (operators_.erase(to) == 0) return;
  actions_.emplace_back(SendControl{to, Answer{problem, {}}});
  close(to);
}

// ---- how the run stands ----

std::string Coordinator::phase_name() const {
  if (phase_ == Phase::joining) return "joining";
  if (phase_ == Phase::changing) return "changing view";
  if (phase_ == Phase::ended) return "ended";
  if (!obstacle().empty()) return "suspended";
  return settings_.pause_after == Settings::never ? "running" : "paused";
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

void Coordinator::measure_rate(MemberStatus& member, const Heartbeat& heartbeat) {
  constexpr Time window = std::chrono::seconds(2);
  const auto bytes = heartbeat.bytes_sent;
  const auto begin = [&] {
    member.rate_since = now_;
    member.rate_from = bytes;
    member.step_from = heartbeat.step;
  };
  member.beat = now_;
  if (member.rate_since == Time{} || bytes < member.rate_from || heartbeat.step < member.step_from) {
    begin();
  } else if (const auto passed = now_ - member.rate_since; passed >= window) {
    const auto seconds = std::chrono::duration<double>(passed).count();
    member.sent_per_second = static_cast<double>(bytes - member.rate_from) / seconds;
    member.steps_per_second = static_cast<double>(heartbeat.step - member.step_from) / seconds;
    begin();
  }
}

}  // namespace isthmus::outer_sync::protocol
