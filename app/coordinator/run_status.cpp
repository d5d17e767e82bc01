#include "coordinator/run_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/base/time.h"
#include "run/output/lines.h"

namespace isthmus::app {

using Json = nlohmann::ordered_json;
using outer_sync::protocol::Coordinator;
using outer_sync::protocol::MemberKind;
using outer_sync::protocol::Settings;

namespace {

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string member_state(const Coordinator::MemberStatus& member) {
  if (member.done) return "done";
  if (member.role == Coordinator::Role::member) return "member";
  return member.role == Coordinator::Role::ready ? "ready" : "joining";
}

Json member_of(const Coordinator& coordinator, const std::string& name,
               const Coordinator::MemberStatus& member) {
  const auto& beat = member.heartbeat;
  const auto& checkpoints = beat.checkpoints;
  return {{"name", name},
          {"site", member.hello.site},
          {"kind", member.hello.member.kind == MemberKind::reducer ? "reducer" : "trainer"},
          {"state", member_state(member)},
          {"step", beat.step},
          {"loss", finite(beat.loss)},
          {"utilization", finite(beat.utilization)},
          {"tokens_per_second", finite(beat.tokens_per_second)},
          {"bytes_sent", beat.bytes_sent},
          {"wire_bytes_per_second", finite(member.rates.bytes_per_second())},
          {"uplink_bytes_per_second", member.uplink > 0 ? Json(member.uplink) : Json(nullptr)},
          {"calendar", member.calendar.text()},
          {"allowance", coordinator.allowance_of(member)},
          {"late_results", beat.late_results},
          {"rounds_lag", coordinator.lag_of(member)},
          {"checkpoint", checkpoints.empty() ? std::uint64_t{0} : std::ranges::max(checkpoints).step},
          {"silent_seconds", seconds(coordinator.silence_of(member))},
          {"build", member.hello.build},
          {"address", member.hello.member.address}};
}

Json settings_of(const Settings& settings) {
  auto changes = Json::array();
  for (const auto& change : settings.changes) {
    auto values = Json::object();
    for (const auto& [key, value] : change.items) values[key] = value;
    changes.push_back({{"after_step", change.step}, {"values", values}});
  }
  const auto step = [](std::uint64_t value) {
    return value == Settings::never ? Json(nullptr) : Json(value);
  };
  return {{"changes", changes}, {"paused_after", step(settings.pause_after)}};
}

/// A member that has just come back reports step 0 until it has made one, so it does not count.
std::uint64_t slowest_step(const Coordinator& coordinator) {
  auto slowest = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [name, member] : coordinator.members()) {
    const bool counts =
        outer_sync::protocol::trains(member.hello.member) && member.role == Coordinator::Role::member;
    if (counts && member.heartbeat.step > 0) slowest = std::min(slowest, member.heartbeat.step);
  }
  return slowest == std::numeric_limits<std::uint64_t>::max() ? 0 : slowest;
}

/// All members have the same figures; takes those of the foremost member that has any.
Json outer_steps_of(const Coordinator& coordinator) {
  const outer_sync::protocol::Heartbeat* foremost = nullptr;
  for (const auto& [name, member] : coordinator.members()) {
    const auto& beat = member.heartbeat;
    if (beat.outer_gain != 0 && (foremost == nullptr || beat.step > foremost->step)) foremost = &beat;
  }
  if (foremost == nullptr) return nullptr;
  return {{"gain", finite(foremost->outer_gain)}, {"correlation", finite(foremost->outer_correlation)}};
}

}  // namespace

Json status_of(const Coordinator& coordinator, const Experiment& experiment,
               const std::optional<std::pair<std::uint64_t, double>>& evaluation) {
  Json out{{"run", experiment.run.name}, {"phase", name_of(coordinator.run_phase())}};
  if (!coordinator.obstacle().empty()) out["obstacle"] = coordinator.obstacle();
  out["view"] = coordinator.view();
  out["step"] = slowest_step(coordinator);
  out["steps"] = experiment.run.steps;
  out["replicas"] = experiment.replicas;
  out["participating"] = coordinator.participating();
  out["checkpoint"] = coordinator.complete_checkpoint();
  out["evaluation"] =
      evaluation ? Json{{"step", evaluation->first}, {"loss", finite(evaluation->second)}} : Json(nullptr);
  out["outer_steps"] = outer_steps_of(coordinator);
  out["members"] = Json::array();
  for (const auto& [name, member] : coordinator.members())
    out["members"].push_back(member_of(coordinator, name, member));
  out["relays"] = Json::array();
  for (const auto& [a, b, by] : coordinator.relays())
    out["relays"].push_back({{"between", {a, b}}, {"by", by}});
  out["slow_paths"] = Json::array();
  for (const auto& route : coordinator.paths().slow())
    out["slow_paths"].push_back({{"from", route.from}, {"to", route.to}});
  out["settings"] = settings_of(coordinator.settings());
  return out;
}

// ---- the table ----

namespace {

/// At most five characters and the unit's.
std::string short_of(double value, const char* unit) {
  constexpr const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t i = 0;
  for (; value >= 999.5 && i + 1 < std::size(prefixes); ++i) value /= 1000;
  return fmt::format("{:.{}f}{}{}", value, value < 9.95 && i > 0 ? 1 : 0, prefixes[i], unit);
}

std::string number_of(const nlohmann::json& member, const char* key, const char* format) {
  const auto& value = member.at(key);
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

/// At most seven characters, also of a loss that diverges.
std::string loss_of(const nlohmann::json& member) {
  const auto& loss = member.at("loss");
  const bool is_usual = loss.is_number() && loss.get<double>() >= 0 && loss.get<double>() < 99.99995;
  return number_of(member, "loss", is_usual ? "{:.4f}" : "{:.1e}");
}

/// At most eight characters.
std::string step_of(const nlohmann::json& member) {
  const auto step = member.at("step").get<std::uint64_t>();
  return step < 100'000'000 ? std::to_string(step) : short_of(static_cast<double>(step), "");
}

std::string row_of_member(const nlohmann::json& member) {
  const auto lags = member.at("rounds_lag").get<std::vector<std::uint64_t>>();
  const auto kind = member.at("kind").get<std::string>();
  const bool trains = kind == "trainer";
  const auto text = [&](const char* key, std::size_t most) {
    return short_name(printable_ascii(member.at(key).get<std::string>()), most);
  };
  const auto rate = member.at("tokens_per_second");
  return fmt::format(
      "{:<14} {:<7} {:>8} {:>7} {:>4} {:>6} {:>7} {:>8} {:>3} {:>7}\n", text("name", 14), text("site", 7),
      trains ? step_of(member) : "-", trains ? loss_of(member) : "-",
      trains && member.at("utilization").is_number()
          ? fmt::format("{:.0f}%", 100 * member.at("utilization").get<double>())
          : "-",
      trains && rate.is_number() ? short_of(rate.get<double>(), "") : "-",
      short_of(member.at("bytes_sent").get<double>(), "B"),
      short_of(8 * member.at("wire_bytes_per_second").get<double>(), "b/s"),
      lags.empty() ? "-" : std::to_string(std::min<std::uint64_t>(999, std::ranges::max(lags))),
      trains ? text("state", 7) : "reduces");
}

std::string step_text(const nlohmann::json& settings, const char* key) {
  return std::to_string(settings.at(key).get<std::uint64_t>());
}

/// A note in lines; its text begins at the same column in all of them.
std::string note_lines(const std::string& text) {
  constexpr std::size_t margin = 9;
  return in_lines(printable(text), margin);
}

/// The next deadline of a run with a calendar.
std::string timetable_line(const nlohmann::json& status) {
  const auto timetable = status.find("timetable");
  if (timetable == status.end() || timetable->empty()) return {};
  const auto& next = timetable->front();
  const auto& seconds = next.at("due_in_seconds");
  return note_lines(fmt::format(
      "next     fragment {}, sent at step {}, due at step {}{}", next.at("fragment").get<std::uint64_t>(),
      next.at("sent_step").get<std::uint64_t>(), next.at("apply_step").get<std::uint64_t>(),
      seconds.is_number() ? fmt::format(" (in {:.1f} s)", seconds.get<double>()) : ""));
}

std::string settings_lines(const nlohmann::json& settings) {
  std::string out;
  for (const auto& change : settings.at("changes")) {
    for (const auto& [key, value] : change.at("values").items())
      out += note_lines(fmt::format("set      {}={} after step {}", key, value.get<std::string>(),
                                    change.at("after_step").get<std::uint64_t>()));
  }
  if (!settings.at("paused_after").is_null())
    out += "paused   after step " + step_text(settings, "paused_after") + "\n";
  return out;
}

}  // namespace

std::string status_table(const nlohmann::json& status) {
  try {
    const auto text = [&](const char* key) { return status.at(key).get<std::string>(); };
    const auto number = [&](const char* key) { return status.at(key).get<std::uint64_t>(); };
    auto out = note_lines(fmt::format(
        "run {}: {}, step {} of {}, view {}, {} of {} in, checkpoint {}", text("run"), text("phase"),
        number("step"), number("steps"), number("view"), number("participating"), number("replicas"),
        number("checkpoint") == 0 ? "none" : std::to_string(number("checkpoint"))));
    if (status.contains("obstacle")) out += note_lines("rounds do not commit: " + text("obstacle"));
    if (const auto& evaluation = status.at("evaluation"); !evaluation.is_null())
      out += fmt::format("eval     loss {} at step {}\n", number_of(evaluation, "loss", "{:.4f}"),
                         evaluation.at("step").get<std::uint64_t>());
    out += fmt::format("{:<14} {:<7} {:>8} {:>7} {:>4} {:>6} {:>7} {:>8} {:>3} {:>7}\n", "member", "site",
                       "step", "loss", "util", "tok/s", "sent", "wire", "lag", "state");
    for (const auto& member : status.at("members")) out += row_of_member(member);
    for (const auto& member : status.at("members")) {
      const auto allowance = member.value("allowance", std::string());
      if (allowance.empty()) continue;
      out += note_lines(fmt::format("calendar {}: {}; late results: {}", member.at("name").get<std::string>(),
                                    allowance, member.value("late_results", std::uint64_t{0})));
    }
    out += timetable_line(status);
    for (const auto& relay : status.at("relays"))
      out += note_lines(fmt::format("relay    {} between {} and {}", relay.at("by").get<std::string>(),
                                    relay.at("between").at(0).get<std::string>(),
                                    relay.at("between").at(1).get<std::string>()));
    for (const auto& path : status.at("slow_paths")) {
      const auto from = path.at("from").get<std::string>(), to = path.at("to").get<std::string>();
      out += note_lines(fmt::format("slow     {}", from.empty() ? "all paths to " + to
                                                   : to.empty() ? "all paths from " + from
                                                                : "from " + from + " to " + to));
    }
    return out + settings_lines(status.at("settings"));
  } catch (const nlohmann::json::exception& error) {
    data_error(std::string("unexpected status from the coordinator: ") + error.what());
  }
}

}  // namespace isthmus::app
