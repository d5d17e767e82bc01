#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "isthmus/base/progress.h"
#include "run/output/lines.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

double utilization(const OuterBenchMember& m) { return ratio(m.compute_seconds, m.measured_seconds); }

/// Fractions of the measured time. "other" is the protocol's work: asking whether a step may begin.
ordered_json lost(const OuterBenchMember& m) {
  const auto part = [&](double seconds) { return ratio(seconds, m.measured_seconds); };
  const double named =
      m.compute_seconds + m.waiting_seconds + m.encoding_seconds + m.applying_seconds + m.late_wake_seconds;
  return {{"waiting", part(m.waiting_seconds)},
          {"encoding", part(m.encoding_seconds)},
          {"applying", part(m.applying_seconds)},
          {"late_wake", part(m.late_wake_seconds)},
          {"other", part(std::max(0.0, m.measured_seconds - named))}};
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto rank = std::max<std::ptrdiff_t>(
      1, static_cast<std::ptrdiff_t>(std::ceil(q * static_cast<double>(values.size()))));
  const auto at = values.begin() + rank - 1;
  std::ranges::nth_element(values, at);
  return *at;
}

ordered_json outer_bench_json(const OuterBenchSettings& settings,
                              const std::vector<OuterBenchMember>& members) {
  const auto& m = *std::ranges::min_element(members, {}, utilization);
  const auto parameters = static_cast<double>(m.parameters);
  const auto bits = [&](std::uint64_t bytes) {
    return ratio(8 * static_cast<double>(bytes), parameters * static_cast<double>(m.steps));
  };
  ordered_json json;
  json["parameters"] = m.parameters;
  json["replicas"] = members.size();
  json["step_time"] = m.step_time;
  json["codec"] = settings.codec;
  json["sync_every"] = settings.sync_every;
  json["num_fragments"] = settings.num_fragments;
  json["sync_delay"] = settings.sync_delay;
  json["steps"] = m.steps;
  json["measured_steps"] = m.measured_steps;
  json["measured_seconds"] = m.measured_seconds;
  json["stopped"] = m.stopped;
  json["of_replica"] = m.name;
  json["compute_utilization"] = utilization(m);
  json["lost"] = lost(m);
  json["bits_per_parameter_per_step"] = bits(m.payload_bytes);
  json["bits_per_parameter_per_step_in_all"] = bits(m.total_bytes);
  if (m.link_bits_per_second > 0)
    json["link_bits_per_parameter_per_step"] = ratio(m.link_bits_per_second * m.step_time, parameters);
  json["rounds"] = m.rounds;
  json["measured_rounds"] = m.measured_rounds;
  json["late_rounds"] = m.late_rounds;
  json["fragment_seconds"] = {{"median", m.fragment_seconds_median}, {"p99", m.fragment_seconds_p99}};
  json["global_hash"] = m.global_hash;
  for (const auto& member : members) json["members"].push_back(to_json(member));
  return json;
}

std::string outer_bench_table(const ordered_json& r) {
  std::string text = "\n";
  const auto row = [&](std::string_view name, const std::string& value) {
    constexpr std::size_t margin = 16;
    text += in_lines(fmt::format("  {:<13} {}", name, value), margin);
  };
  const auto number = [&](const char* key) { return r.at(key).get<double>(); };
  const auto count = [&](const char* key) { return r.at(key).get<std::uint64_t>(); };
  const auto percent = [](const ordered_json& value) { return 100 * value.get<double>(); };
  const double step = number("step_time");
  row("outer loop", fmt::format("{} replicas, {:.2f} M parameters, steps of {:.4g} s", count("replicas"),
                                number("parameters") / 1e6, step));
  row("settings",
      fmt::format("{}, sync_every {}, num_fragments {}, sync_delay {}", r["codec"].get<std::string>(),
                  count("sync_every"), count("num_fragments"), count("sync_delay")));
  row("measured", fmt::format("the last {} of {} steps{}, {}", count("measured_steps"), count("steps"),
                              r["stopped"].get<bool>() ? " (stopped early)" : "",
                              format_duration(number("measured_seconds"))));
  // Cut to the table's width: a name has up to 64 characters.
  row("compute", fmt::format("{:.2f} % of the time (lowest: {})", percent(r["compute_utilization"]),
                             short_name(r["of_replica"].get<std::string>(), 26)));
  const auto& lost = r["lost"];
  row("lost", fmt::format("{:.2f} % waiting, {:.2f} % encoding, {:.2f} % applying,", percent(lost["waiting"]),
                          percent(lost["encoding"]), percent(lost["applying"])));
  row("",
      fmt::format("{:.2f} % woken late, {:.2f} % other", percent(lost["late_wake"]), percent(lost["other"])));
  row("sent",
      fmt::format("{:.4f} bits per parameter and step ({:.4f} with headers)",
                  number("bits_per_parameter_per_step"), number("bits_per_parameter_per_step_in_all")));
  row("link", r.contains("link_bits_per_parameter_per_step")
                  ? fmt::format("{:.4f} bits per parameter and step, as configured",
                                number("link_bits_per_parameter_per_step"))
                  : "no rate configured");
  row("fragment",
      fmt::format("{:.3f} s from start to result, 99th percentile {:.3f} s",
                  r["fragment_seconds"]["median"].get<double>(), r["fragment_seconds"]["p99"].get<double>()));
  row("", fmt::format("sync_delay is {:.3f} s", number("sync_delay") * step));
  row("rounds", fmt::format("{}; late: {} of the {} measured", count("rounds"), count("late_rounds"),
                            count("measured_rounds")));
  row("global hash",
      fmt::format("{}, equal on all replicas", r["global_hash"].get<std::string>().substr(0, 16)));
  return text;
}

}  // namespace isthmus::app
