#include "compare/report/certificate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "compare/report/json_or_null.h"
#include "compare/report/verdicts.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "run/output/version.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

std::string_view name_of(GateVerdict::Outcome outcome) {
  switch (outcome) {
    case GateVerdict::Outcome::passed:
      return "passed";
    case GateVerdict::Outcome::failed:
      return "failed";
    case GateVerdict::Outcome::not_shown:
      return "not_shown";
  }
  return "?";
}

ordered_json gate_json(const Gate& gate, const Comparison& comparison, const GateFigures& figures,
                       const GateVerdict& verdict) {
  const auto& difference = figures.difference;
  const bool has_interval = difference && difference->noise;
  return {{"name", gate.name},
          {"arm", comparison.arms[gate.arm].name},
          {"against", comparison.arms[gate.against].name},
          {"at_most", gate.at_most},
          {"max_bits", json_or_null(gate.bits)},
          {"seeds", figures.seeds},
          {"difference", difference ? ordered_json(difference->relative) : ordered_json()},
          {"low", has_interval ? ordered_json(difference->low()) : ordered_json()},
          {"high", has_interval ? ordered_json(difference->high()) : ordered_json()},
          {"bits_per_parameter_per_step", json_or_null(figures.bits)},
          {"ended", figures.ended},
          {"outcome", name_of(verdict.outcome)},
          {"more_seeds", json_or_null(verdict.more_seeds)},
          {"verdict", to_string(verdict)}};
}

ordered_json arms_json(const Comparison& comparison) {
  auto arms = ordered_json::array();
  for (std::size_t i = 0; i < comparison.arms.size(); ++i) {
    const auto run = std::ranges::find(comparison.runs, i, &RunPlan::arm);
    if (run == comparison.runs.end()) continue;  // the arm is a curve: nothing was run
    arms.push_back(
        {{"name", comparison.arms[i].name}, {"config_fingerprint", config_fingerprint(*run).hex()}});
  }
  return arms;
}

ordered_json runs_json(const Comparison& comparison, const Records& records) {
  auto runs = ordered_json::array();
  for (std::size_t i = 0; i < comparison.arms.size(); ++i) {
    for (const auto& run : records.of_arm[i]) {
      if (!run.seed) continue;  // a curve
      runs.push_back({{"arm", comparison.arms[i].name},
                      {"seed", *run.seed},
                      {"commit", json_or_null(run.commit)},
                      {"global_hash", json_or_null(run.global_hash)}});
    }
  }
  return runs;
}

/// Warns about runs that another commit trained, and about a binary from uncommitted sources.
ordered_json notes_json(const ordered_json& certificate) {
  auto notes = ordered_json::array();
  std::set<std::string> others;
  for (const auto& run : certificate["runs"]) {
    if (run["commit"] == certificate["commit"]) continue;
    others.insert(run["commit"].is_null() ? "an unknown commit" : run["commit"].get<std::string>());
  }
  std::string list;
  for (const auto& other : others) list += (list.empty() ? "" : ", ") + other;
  if (!others.empty())
    notes.push_back("Some runs were trained by other commits: " + list +
                    ". To certify this commit, run them again in another folder (--set out=FOLDER).");
  if (certificate["commit"].get<std::string>().ends_with("-dirty"))
    notes.push_back("This binary was built from sources with uncommitted changes.");
  return notes;
}

/// "+0.31 %", always with two decimals: otherwise a bound and an end of the interval could look equal when
/// they are not.
std::string percents(const ordered_json& part) {
  return part.is_number() ? fmt::format("{:+.2f} %", 100 * part.get<double>()) : "-";
}

}  // namespace

ordered_json certificate_json(const Comparison& comparison, const Records& records) {
  bool passed = true;
  auto gates = ordered_json::array();
  for (const auto& gate : comparison.gates) {
    const auto figures = gate_figures(records.of_arm[gate.arm], records.of_arm[gate.against]);
    const auto verdict = judge(gate, figures);
    passed = passed && verdict.outcome == GateVerdict::Outcome::passed;
    gates.push_back(gate_json(gate, comparison, figures, verdict));
  }
  ordered_json certificate = {{"passed", passed},
                              {"commit", commit()},
                              {"protocol", outer_sync::protocol::protocol_version},
                              {"numerics", outer_sync::protocol::numerics_version},
                              {"gates", gates},
                              {"arms", arms_json(comparison)},
                              {"runs", runs_json(comparison, records)}};
  certificate["notes"] = notes_json(certificate);
  return certificate;
}

std::string certificate_summary(const ordered_json& certificate) {
  const auto& gates = certificate["gates"];
  const auto passed =
      std::ranges::count_if(gates, [](const auto& gate) { return gate["outcome"] == "passed"; });
  return fmt::format("{} of {} gate{} passed", passed, gates.size(), gates.size() == 1 ? "" : "s");
}

GateCells gate_cells(const ordered_json& gate) {
  GateCells cells;
  cells.difference = percents(gate["difference"]);
  cells.interval =
      gate["low"].is_number() ? percents(gate["low"]) + " to " + percents(gate["high"]) : std::string("-");
  cells.at_most = percents(gate["at_most"]);
  const auto bits = [&](const char* key, const char* format) {
    return gate[key].is_number() ? fmt::format(fmt::runtime(format), gate[key].get<double>()) : "-";
  };
  cells.bits = bits("bits_per_parameter_per_step", "{:.4f}");
  cells.max_bits = bits("max_bits", "{:g}");
  for (const auto& seed : gate["seeds"]) cells.seeds += (cells.seeds.empty() ? "" : ", ") + seed.dump();
  if (cells.seeds.empty()) cells.seeds = "-";
  cells.verdict = gate["verdict"].get<std::string>();
  for (const auto& words : gate["ended"]) cells.verdict += "; " + words.get<std::string>();
  return cells;
}

}  // namespace isthmus::app
