#include "compare/statistics/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace isthmus::app {

namespace {

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double half_interval(double deviation, std::size_t count) {
  return t_quantile(static_cast<double>(count - 1)) * deviation / std::sqrt(static_cast<double>(count));
}

}  // namespace

double t_quantile(double freedom) {
  constexpr std::array table = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060,
                                2.2622,  2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199,
                                2.1098,  2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639};
  const auto at = [&](std::size_t whole) { return table[whole - 1]; };
  freedom = std::max(freedom, 1.0);
  if (freedom <= static_cast<double>(table.size())) {
    // Welch's degrees of freedom are not whole numbers. The quantile is nearly linear in their reciprocal.
    const auto below = static_cast<std::size_t>(freedom);
    if (below == table.size()) return at(below);
    const double from = 1.0 / static_cast<double>(below), to = 1.0 / static_cast<double>(below + 1);
    const double part = (from - 1 / freedom) / (from - to);
    return at(below) + part * (at(below + 1) - at(below));
  }
  // Cornish-Fisher expansion of the normal quantile.
  constexpr double z = 1.959964;
  const double z3 = z * z * z, z5 = z3 * z * z;
  return z + (z3 + z) / (4 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96 * freedom * freedom);
}

Estimate estimate(std::span<const double> values) {
  Estimate result;
  result.count = values.size();
  if (values.empty()) return result;
  result.mean = mean_of(values);
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  result.noise = half_interval(*result.deviation, values.size());
  return result;
}

std::optional<std::size_t> seeds_to_tell(const Difference& paired, double bound) {
  for (std::size_t n = paired.count; paired.deviation && n <= max_seeds; ++n)
    if (half_interval(*paired.deviation, n) < std::abs(paired.relative - bound)) return n - paired.count;
  return {};
}

Difference paired_difference(std::span<const double> arm, std::span<const double> baseline) {
  const double scale = mean_of(baseline);
  std::vector<double> differences;
  for (std::size_t i = 0; i < arm.size(); ++i) differences.push_back((arm[i] - baseline[i]) / scale);
  const auto all = estimate(differences);
  Difference result{.paired = true,
                    .count = arm.size(),
                    .relative = all.mean,
                    .deviation = all.deviation,
                    .noise = all.noise,
                    .more_seeds = {}};
  if (!result.resolved()) result.more_seeds = seeds_to_tell(result, 0);
  return result;
}

Difference unpaired_difference(std::span<const double> arm, std::span<const double> baseline) {
  const auto ours = estimate(arm), theirs = estimate(baseline);
  Difference result;
  result.count = std::min(arm.size(), baseline.size());
  result.relative = (ours.mean - theirs.mean) / theirs.mean;
  if (!ours.deviation && !theirs.deviation) return result;
  const double root = std::sqrt(1 / static_cast<double>(ours.count) + 1 / static_cast<double>(theirs.count));
  if (!ours.deviation || !theirs.deviation) {  // a single value: assumed as noisy as the other side
    const auto& several = ours.deviation ? ours : theirs;
    result.noise =
        t_quantile(static_cast<double>(several.count - 1)) * *several.deviation * root / theirs.mean;
    return result;
  }
  const auto part = [](const Estimate& e) {
    return *e.deviation * *e.deviation / static_cast<double>(e.count);
  };
  const double a = part(ours), b = part(theirs);
  if (a + b == 0) {
    result.noise = 0;
    return result;
  }
  const double freedom =
      (a + b) * (a + b) /
      (a * a / static_cast<double>(ours.count - 1) + b * b / static_cast<double>(theirs.count - 1));
  result.noise = t_quantile(freedom) * std::sqrt(a + b) / theirs.mean;
  return result;
}

}  // namespace isthmus::app
