#include "compare/report/verdicts.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::app {

GateFigures gate_figures(const std::vector<RunRecord>& arm, const std::vector<RunRecord>& against) {
  GateFigures figures;
  const auto pairs = pair_by_seed(arm, against);
  figures.seeds = pairs.seeds;
  if (!pairs.seeds.empty()) figures.difference = paired_difference(pairs.arm, pairs.against);
  const auto broken_too = [&](const RunRecord& run) {
    return std::ranges::any_of(
        against, [&](const RunRecord& other) { return other.seed == run.seed && !other.is_whole(); });
  };
  for (const auto& run : arm) {
    if (!run.is_whole() && !broken_too(run)) figures.ended.push_back(run.ended_line());
    if (run.is_whole() && run.bits) figures.bits = std::max(figures.bits.value_or(0), *run.bits);
  }
  return figures;
}

GateVerdict judge(const Gate& gate, const GateFigures& figures) {
  using enum GateVerdict::Outcome;
  const auto& difference = figures.difference;
  const bool is_measured = difference && difference->noise;
  const auto more = is_measured ? seeds_to_tell(*difference, gate.at_most) : std::optional<std::size_t>(0);
  const auto seeds = figures.seeds.size() + figures.ended.size();
  if (seeds < min_gate_seeds)
    return {not_shown, more ? std::optional(std::max(min_gate_seeds - seeds, *more)) : std::nullopt};
  const bool sends_too_much = gate.bits && !(figures.bits && *figures.bits <= *gate.bits);
  if (!figures.ended.empty() || sends_too_much || difference->low() > gate.at_most) return {failed, {}};
  if (difference->high() <= gate.at_most) return {passed, {}};
  return {not_shown, more};
}

std::string to_string(const GateVerdict& verdict) {
  switch (verdict.outcome) {
    case GateVerdict::Outcome::passed:
      return "passed";
    case GateVerdict::Outcome::failed:
      return "failed";
    case GateVerdict::Outcome::not_shown:
      break;
  }
  if (!verdict.more_seeds) return fmt::format("not shown, needs more than {} seeds", max_seeds);
  return fmt::format("not shown, needs {} more seed{}", *verdict.more_seeds,
                     *verdict.more_seeds == 1 ? "" : "s");
}

}  // namespace isthmus::app
