#include "plan/windows.h"

#include <fmt/format.h>

#include <algorithm>

#include "isthmus/outer_sync/plan/recommend.h"
#include "run/output/lines.h"

namespace isthmus::app {

using nlohmann::ordered_json;
using outer_sync::Calendar;
using outer_sync::WallTime;
using outer_sync::plan::Setting;

namespace {

/// The calendar of a site in the config; the general one if the links name no site of the config.
Calendar calendar_of(const Experiment& experiment, const std::string& name) {
  auto text = experiment.network.calendar;
  for (const auto& site : experiment.sites) {
    const auto workers = site.workers();
    if (site.name != name && std::ranges::find(workers, name) == workers.end()) continue;
    const auto* own = site.find("network.calendar");
    if (own != nullptr && !own->values.empty()) text = own->values.front();
  }
  return Calendar::parse(text);
}

/// The links in a window: closed replicas are left out.
Setting setting_in(const CalendarWindow& window, const PlanInput& input) {
  auto setting = input.setting;
  auto& network = setting.network;
  network.replicas.clear();
  network.place.clear();
  std::size_t replica = 0;
  bool known = true;
  for (std::size_t s = 0; s < input.links.sites.size(); ++s) {
    for (std::int64_t i = 0; i < input.links.sites[s].replicas; ++i, ++replica) {
      const auto& allowance = window.sites[s];
      if (allowance && allowance->closed) continue;
      auto one = input.setting.network.replicas[replica];
      if (allowance && allowance->bytes_per_second > 0)
        one.up = std::min(one.up, static_cast<double>(allowance->bytes_per_second));
      known = known && one.up < outer_sync::plan::unlimited;
      network.replicas.push_back(one);
      network.place.push_back(input.setting.network.place[replica]);
    }
  }
  setting.uplinks_known = setting.uplinks_known || known;
  return setting;
}

/// The settings that outer.auto would change to, as during a run.
ordered_json by_auto(double utilization, const outer_sync::OuterConfig& outer,
                     const outer_sync::plan::Cut& cut, const Setting& setting) {
  using outer_sync::plan::last_sync_every;
  if (outer.method != outer_sync::Method::streaming_diloco) return nullptr;
  outer_sync::plan::Wanted wanted;
  wanted.utilization = utilization;
  wanted.codecs = {outer.codec};
  wanted.shortest_interval = static_cast<std::int64_t>(last_sync_every(outer));
  wanted.longest_interval = std::max<std::int64_t>(100, wanted.shortest_interval);
  wanted.shortest_delay = outer.sync_delay;
  wanted.longest_delay = std::max(wanted.longest_delay, outer.sync_delay);
  auto base = outer;
  base.sync_every = wanted.shortest_interval;
  const auto found = outer_sync::plan::choices(
      base, [&](std::int64_t) -> const outer_sync::plan::Cut& { return cut; }, setting, wanted);
  if (found.empty()) return nullptr;
  const auto& chosen = found.front();
  return {{"sync_every", last_sync_every(chosen.outer)},
          {"sync_delay", chosen.outer.sync_delay},
          {"utilization", chosen.prediction.utilization}};
}

ordered_json window_json(const CalendarWindow& window, const PlanRequest& request, const PlanInput& input) {
  auto outer = input.experiment.outer;
  const auto setting = setting_in(window, input);
  const auto open = static_cast<std::int64_t>(setting.network.replicas.size());
  const bool waits = open < (outer.data_parallel() ? outer.replicas : outer.required_replicas());
  ordered_json json{
      {"hours_per_week", std::chrono::duration<double, std::ratio<3600>>(window.in_week).count()},
      {"begins", outer_sync::clock_text(window.begins)},
      {"links", ordered_json::array()},
      {"participating", open},
      {"utilization", nullptr},
      {"by_auto", nullptr}};
  for (std::size_t s = 0; s < window.sites.size(); ++s) {
    if (window.sites[s])
      json["links"].push_back(
          {{"site", input.links.sites[s].name}, {"allowance", to_string(*window.sites[s])}});
  }
  if (waits) return json;
  outer.replicas = open;
  const auto cut = outer_sync::plan::cut(outer, input.cut(outer.num_fragments).layout, setting);
  const auto prediction = outer_sync::plan::predict(outer, cut, setting);
  json["utilization"] = prediction.utilization;
  if (prediction.utilization < request.utilization)
    json["by_auto"] = by_auto(request.utilization, outer, cut, setting);
  return json;
}

}  // namespace

std::vector<CalendarWindow> calendar_windows(const std::vector<Calendar>& sites) {
  constexpr WallTime monday{std::chrono::sys_days{std::chrono::year{2024} / 1 / 1}};
  constexpr auto end = monday + std::chrono::days(7);
  std::vector<CalendarWindow> windows;
  for (auto time = monday; time < end;) {
    CalendarWindow window{.sites = {}, .begins = time};
    auto next = end;
    for (const auto& calendar : sites) {
      window.sites.push_back(calendar.at(time));
      next = std::min(next, calendar.next_change(time).value_or(end));
    }
    const auto same = std::ranges::find(windows, window.sites, &CalendarWindow::sites);
    auto& found = same == windows.end() ? windows.emplace_back(std::move(window)) : *same;
    found.in_week += next - time;
    time = next;
  }
  std::ranges::stable_sort(windows, {}, [](const CalendarWindow& window) {
    return std::ranges::count_if(window.sites, [](const auto& allowance) { return allowance.has_value(); });
  });
  return windows;
}

ordered_json calendar_json(const PlanRequest& request, const PlanInput& input) {
  std::vector<Calendar> calendars;
  for (const auto& site : input.links.sites) calendars.push_back(calendar_of(input.experiment, site.name));
  if (std::ranges::all_of(calendars, &Calendar::empty)) return nullptr;
  auto json = ordered_json::array();
  for (const auto& window : calendar_windows(calendars)) json.push_back(window_json(window, request, input));
  return json;
}

std::string calendar_text(const ordered_json& windows) {
  if (windows.is_null()) return {};
  std::string text = "\n  h/week  first          in  compute  outer.auto sets  calendar\n";
  for (const auto& window : windows) {
    std::string links;
    for (const auto& link : window["links"])
      links += fmt::format("{}{} {}", links.empty() ? "" : ", ", link["site"].get<std::string>(),
                           link["allowance"].get<std::string>());
    const auto& set = window["by_auto"];
    constexpr std::size_t margin = 52;
    text += in_lines(
        fmt::format("  {:>6.1f}  {:<13} {:>3}  {:>7}  {:<15}  {}", window["hours_per_week"].get<double>(),
                    window["begins"].get<std::string>(), window["participating"].get<std::int64_t>(),
                    window["utilization"].is_null()
                        ? "waits"
                        : fmt::format("{:.2f}%", 100 * window["utilization"].get<double>()),
                    set.is_null() ? "-"
                                  : fmt::format("H {} tau {}", set["sync_every"].get<std::int64_t>(),
                                                set["sync_delay"].get<std::int64_t>()),
                    links.empty() ? "no entry" : links),
        margin);
  }
  return text;
}

}  // namespace isthmus::app
