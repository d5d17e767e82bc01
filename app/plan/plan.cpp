#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/plan/paper_table.h"
#include "plan/windows.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

double figure_at(const ordered_json& json, const char* key) { return json.at(key).get<double>(); }

std::string rate(double bits_per_second) {
  if (!std::isfinite(bits_per_second)) return "any";
  return bits_per_second >= 1e9   ? fmt::format("{:.3g} Gbps", bits_per_second / 1e9)
         : bits_per_second >= 1e6 ? fmt::format("{:.3g} Mbps", bits_per_second / 1e6)
                                  : fmt::format("{:.3g} kbps", bits_per_second / 1e3);
}

std::string table_head(const char* first) {
  return fmt::format("\n  {:<16} {:>5} {:>4} {:>4} {:<7} {:>7} {:>9} {:>9} {:>9}\n", first, "H", "P", "tau",
                     "codec", "compute", "tokens/s", "sent", "mean");
}

/// At most 80 columns.
std::string table_row(const ordered_json& row, bool by_codec = false) {
  return fmt::format("  {:<16} {:>5} {:>4} {:>4} {:<7} {:>6.2f}% {:>9} {:>9} {:>9}\n",
                     by_codec ? "" : row["method"].get<std::string>(), row["sync_every"].get<std::int64_t>(),
                     row["num_fragments"].get<std::int64_t>(), row["sync_delay"].get<std::int64_t>(),
                     row["codec"].get<std::string>(), 100 * figure_at(row, "utilization"),
                     format_count(figure_at(row, "tokens_per_second")),
                     format_bytes(figure_at(row, "bytes_per_replica")),
                     rate(figure_at(row, "mean_bits_per_second")));
}

std::string plan_head(const ordered_json& j) {
  auto text = in_lines(
      fmt::format("{} replicas, {} parameters, {} steps of {:.4g} s ({})", j["replicas"].get<std::int64_t>(),
                  format_count(figure_at(j, "parameters")), j["steps"].get<std::int64_t>(),
                  figure_at(j, "step_seconds"), j["step_source"].get<std::string>()),
      2);
  text += in_lines("links: " + j["links"]["source"].get<std::string>(), 2);
  constexpr std::size_t shown = 8;
  const auto& sites = j["links"]["sites"];
  for (std::size_t i = 0; i < std::min(shown, sites.size()); ++i) {
    const auto& site = sites[i];
    const auto line = [&](const char* key) {
      return figure_at(site, key) > 0 ? rate(figure_at(site, key)) : "any";
    };
    text += fmt::format("  {:<20} {:>4} x  up {:<10} down {:<10} steps of {:.4g} s\n",
                        short_name(site["name"].get<std::string>(), 20), site["replicas"].get<std::int64_t>(),
                        line("up_bits_per_second"), line("down_bits_per_second"),
                        figure_at(site, "step_seconds"));
  }
  if (sites.size() > shown) text += fmt::format("  ... and {} more sites\n", sites.size() - shown);
  text += in_lines(fmt::format("  longest round trip {:.4g} ms; {:.60}",
                               1e3 * figure_at(j["links"], "longest_rtt_seconds"),
                               j["configured"]["owners"].get<std::string>()),
                   4);
  return text;
}

std::string timetable(const ordered_json& j) {
  const auto& rounds = j["timetable"];
  if (rounds.empty()) return {};
  std::string text = "\n  fragment  sent at step  applied after   takes s   slack s   (of an interval)\n";
  constexpr std::size_t shown = 24;
  for (std::size_t i = 0; i < std::min(shown, rounds.size()); ++i) {
    const auto& r = rounds[i];
    const double slack = figure_at(r, "slack_seconds");
    text += fmt::format("  {:>8}  {:>12}  {:>13} {:>9.3f} {:>9.3f}{}\n", r["fragment"].get<int>(),
                        r["sent_at"].get<std::int64_t>(), r["applied_after_steps"].get<std::int64_t>(),
                        figure_at(r, "seconds"), slack, slack < 0 ? "  late" : "");
  }
  if (rounds.size() > shown) text += fmt::format("  ... and {} more\n", rounds.size() - shown);
  return text;
}

std::string memory(const ordered_json& j) {
  const auto& m = j["memory"];
  const auto bytes = [&](const char* key) { return format_bytes(figure_at(m, key)); };
  std::string text = "\nmemory of a replica, without activations\n";
  const auto row = [&](const char* place, const std::string& parts) {
    constexpr std::size_t margin = 22;
    text += in_lines(fmt::format("  {:<7} {:>9}   {}", place, bytes(place), parts), margin);
  };
  row("device",
      fmt::format("parameters {}, gradient {}, moments {}, global parameters {}, outer momentum {}, "
                  "residuals {}, copy for evaluations {}{}",
                  bytes("parameters"), bytes("gradient"), bytes("moments"), bytes("global_parameters"),
                  bytes("outer_momentum"), bytes("residuals"), bytes("evaluation"),
                  figure_at(m, "staging") > 0 ? ", chunks in transit " + bytes("staging") : ""));
  row("host", fmt::format("{}chunks {} (at worst {}), checkpoint {}",
                          m["device_is_host"].get<bool>() ? "including the device's; " : "", bytes("chunks"),
                          bytes("chunks_at_worst"), bytes("checkpoint_buffer")));
  row("disk",
      fmt::format("checkpoints {} of {} each, log {}{}", bytes("checkpoints"), bytes("checkpoint"),
                  bytes("log"),
                  figure_at(m, "audit_records") > 0 ? ", audit records " + bytes("audit_records") : ""));
  return text;
}

std::string traffic(const ordered_json& j) {
  const auto& c = j["configured"];
  std::string text = "\n" + in_lines(fmt::format("traffic of a replica: {} in {}; {} on average, at most {}",
                                                 format_bytes(figure_at(c, "bytes_per_replica")),
                                                 format_duration(figure_at(c, "seconds")),
                                                 rate(figure_at(c, "mean_bits_per_second")),
                                                 rate(figure_at(c, "peak_bits_per_second"))),
                                     2);
  if (figure_at(j, "price_per_gigabyte") > 0)
    text += fmt::format("  of all replicas at {} a GB: {:.2f}\n", figure_at(j, "price_per_gigabyte"),
                        figure_at(c, "traffic_cost"));
  if (j.contains("object_store")) {
    const auto& store = j["object_store"];
    text += in_lines(fmt::format("  not included: copies to the object store, {} with each checkpoint, {} on "
                                 "average, and the round log",
                                 format_bytes(figure_at(store, "checkpoint_bytes")),
                                 rate(figure_at(store, "mean_bits_per_second"))),
                     2);
  }
  if (j.contains("gathered_audit_records")) {
    const auto& gathered = j["gathered_audit_records"];
    text += in_lines(
        fmt::format(
            "  not included: audit records for the coordinator, up to {} of a member{}",
            format_bytes(figure_at(gathered, "bytes")),
            gathered["all"].get<bool>() ? "" : "; later ones are not gathered: raise run.gather_limit"),
        2);
  }
  if (j.contains("exchanges")) {
    const auto& exchanges = j["exchanges"];
    const auto times = exchanges["between_syncs"].get<std::int64_t>();
    const double seconds = figure_at(exchanges, "seconds"), room = figure_at(exchanges, "room_seconds");
    text += in_lines(fmt::format("  included: {} exchange{} in pairs between two syncs of a fragment; the "
                                 "slowest pair needs {:.3g} s "
                                 "for all fragments, of the {:.3g} s until the next{}",
                                 times, times == 1 ? "" : "s", seconds, room,
                                 seconds > room ? ", so exchanges are missed: raise outer.gossip_every" : ""),
                     2);
  }
  if (j.contains("rank_averages")) {
    const auto& averages = j["rank_averages"];
    const auto every = averages["every"].get<std::int64_t>();
    text += in_lines(
        fmt::format("  not included: averages over the ranks of a replica{}, {} of each rank {}; the network "
                    "between them needs {} to do that in 5 % of the time",
                    averages.contains("site") ? " of " + averages["site"].get<std::string>() : "",
                    format_bytes(figure_at(averages, "bytes")),
                    every == 1 ? "in every step"
                               : fmt::format("every {} steps and before each send and result", every),
                    rate(figure_at(averages, "bits_per_second"))),
        2);
  }
  if (const auto warmup = j["warmup_steps"].get<std::int64_t>(); warmup > 0)
    text += in_lines(
        fmt::format("  not included: the {} steps of the synchronous warm-up, which exchange all gradients "
                    "at each step",
                    warmup),
        2);
  return text;
}

std::string recommendation(const ordered_json& j) {
  const auto& r = j["recommended"];
  if (!r["links_are_known"].get<bool>())
    return "\n" + in_lines(
                      "no settings are recommended, because no link is known: pass --links FILE "
                      "(the output of `isthmus doctor CONFIG --json`, for example)",
                      2);
  const double wanted = 100 * figure_at(r, "wanted_utilization");
  if (!r.contains("best"))
    return "\n" + in_lines(fmt::format("none of the settings tried reaches {:.4g} %: use faster links, a "
                                       "larger batch (longer steps) or a smaller model",
                                       wanted),
                           2);
  std::string text = fmt::format("\nto compute {:.4g} % of the time, by codec", wanted) + table_head("");
  for (const auto& row : r["choices"]) text += table_row(row, true);
  text += "recommended:";
  for (const auto& assignment : r["set"]) text += " --set " + assignment.get<std::string>() + " \\\n   ";
  text.erase(text.find_last_not_of(" \\\n") + 1);
  return text + "\n";
}

std::string plan_text(const ordered_json& j) {
  std::string text = plan_head(j) + table_head("as configured") + table_row(j["configured"]);
  text += table_head("other methods");
  for (const auto& row : j["methods"]) text += table_row(row);
  if (!j["codecs"].empty()) {
    text += table_head("other codecs");
    for (const auto& row : j["codecs"]) text += table_row(row, true);
  }
  text += timetable(j) + calendar_text(j.value("calendar", ordered_json())) + traffic(j) + memory(j) +
          recommendation(j);
  for (const auto& limit : j["limits"]) text += in_lines("limit: " + limit.get<std::string>(), 2);
  return text + fmt::format("planned in {:.2f} s\n", figure_at(j, "planned_in_seconds"));
}

}  // namespace

int run_plan(const PlanRequest& request) {
  JsonOutput output(request.json);
  const auto json = plan_json(request, plan_input(request));
  output.print(json);
  if (!request.json) fmt::print("{}", plan_text(json));
  return 0;
}

int run_paper_table(bool as_json) {
  using outer_sync::plan::paper_levels;
  int same = 0, max_points_apart = 0;
  ordered_json json;
  std::string text =
      "Gbit/s needed for a share of the time computing: Table 4 of Streaming DiLoCo / ours\n\n";
  text += fmt::format("  {:<5}{:<13}", "", "");
  for (const double level : paper_levels)
    text += fmt::format(" {:>11}", fmt::format("{:.0f} %", 100 * level));
  text += "\n";
  for (const auto& row : outer_sync::plan::paper_table()) {
    text += fmt::format("  {:<5}{:<13}", row.model, row.method);
    for (std::size_t k = 0; k < paper_levels.size(); ++k) {
      text += fmt::format(" {:>11}", fmt::format("{:.1f}/{:.1f}{}", row.paper[k], row.ours[k],
                                                 row.apart[k] == 0 ? " " : "*"));
      same += row.apart[k] == 0 ? 1 : 0;
      max_points_apart = std::max(max_points_apart, std::abs(row.apart[k]));
    }
    text += "\n";
    json["rows"].push_back({{"model", row.model},
                            {"method", row.method},
                            {"paper", row.paper},
                            {"ours", row.ours},
                            {"points_apart", row.apart}});
  }
  json["levels"] = paper_levels;
  json["same"] = same;
  json["most_points_apart"] = max_points_apart;
  text +=
      "\n" + in_lines(fmt::format("{} of 75 cells agree, on a grid of 50 points from 0.1 to 1000; the others "
                                  "(*) differ by at most {} points",
                                  same, max_points_apart),
                      2);
  JsonOutput output(as_json);
  output.print(json);
  if (!as_json) fmt::print("{}", text);
  return 0;
}

}  // namespace isthmus::app
