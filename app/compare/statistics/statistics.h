#pragma once
// How certain a difference is. The only measure of the noise is how runs vary that differ in nothing but the
// seed.

#include <cstddef>
#include <optional>
#include <span>

namespace isthmus::app {

/// Confidence of all intervals: the fraction of experiments in which they contain the true value.
inline constexpr double confidence = 0.95;

/// Quantile of Student's t for a two-sided interval with this confidence, to four digits. `freedom` is at
/// least 1.
[[nodiscard]] double t_quantile(double freedom);

struct Estimate {
  std::size_t count = 0;
  double mean = 0;
  std::optional<double> deviation;  ///< of one value; needs two values
  std::optional<double> noise;      ///< half the interval of the mean; needs two values
};
[[nodiscard]] Estimate estimate(std::span<const double> values);

/// Difference between an arm and the baseline, as a fraction of the baseline's mean; above 0 is worse.
struct Difference {
  bool paired = false;    ///< each value is compared to that of the same seed
  std::size_t count = 0;  ///< pairs, or the smaller number of values
  double relative = 0;
  std::optional<double> deviation;        ///< of one pair; needs two pairs
  std::optional<double> noise;            ///< half the interval; nullopt with a single seed
  std::optional<std::size_t> more_seeds;  ///< after which the noise would be below the difference
  [[nodiscard]] bool resolved() const { return noise && (relative > *noise || relative < -*noise); }
  /// Ends of the interval. Only if `noise` has a value.
  [[nodiscard]] double low() const { return relative - *noise; }
  [[nodiscard]] double high() const { return relative + *noise; }
};

/// Maximum number of seeds that `seeds_to_tell` considers.
inline constexpr std::size_t max_seeds = 1000;

/// Number of additional seeds after which the interval of a paired difference would be on one side of the
/// bound, if spread and difference stayed the same. 0 if it already is; nullopt if more than max_seeds seeds
/// would be needed.
[[nodiscard]] std::optional<std::size_t> seeds_to_tell(const Difference& paired, double bound);

/// Values with the same index have the same seed. Needs equally many values of both, at least one, and a
/// baseline above 0.
[[nodiscard]] Difference paired_difference(std::span<const double> arm, std::span<const double> baseline);
/// For unrelated values: Welch's interval. If one side has a single value, it is assumed to be as noisy as
/// the other. Needs at least one value of each.
[[nodiscard]] Difference unpaired_difference(std::span<const double> arm, std::span<const double> baseline);

}  // namespace isthmus::app
