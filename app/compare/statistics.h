#pragma once
// How sure a difference is. Runs that differ by nothing but the seed are the only measure of noise there is.

#include <cstddef>
#include <optional>
#include <span>

namespace isthmus::app {

/// Of all intervals: the part of experiments in which they hold the true value.
inline constexpr double confidence = 0.95;

/// The quantile of Student's t that a two-sided interval of that confidence has, to four digits. `freedom`
/// from 1.
[[nodiscard]] double t_quantile(double freedom);

struct Estimate {
  std::size_t count = 0;
  double mean = 0;
  std::optional<double> deviation;  ///< of one value, from two values on
  std::optional<double> noise;      ///< half the interval of the mean; likewise
};
[[nodiscard]] Estimate estimate(std::span<const double> values);

/// Of an arm and the baseline, as a part of the baseline's mean: above 0 is worse.
struct Difference {
  bool paired = false;    ///< each value against that of the same seed
  std::size_t count = 0;  ///< pairs, or the smaller number of values
  double relative = 0;
  std::optional<double> deviation;        ///< of one pair, from two pairs on
  std::optional<double> noise;            ///< half the interval; nothing where one seed alone is there
  std::optional<std::size_t> more_seeds;  ///< after which noise of this size would be below the difference
  [[nodiscard]] bool resolved() const { return noise && (relative > *noise || relative < -*noise); }
  /// Ends of the interval; `noise` must be there.
  [[nodiscard]] double low() const { return relative - *noise; }
  [[nodiscard]] double high() const { return relative + *noise; }
};

/// `seeds_to_tell` looks no further than this number of seeds.
inline constexpr std::size_t max_seeds = 1000;

/// Seeds beyond those there are after which the interval of a paired difference would lie on one side of the
/// bound, if spread and difference stayed what they are; 0 where it does already, nothing where too many
/// would be needed.
[[nodiscard]] std::optional<std::size_t> seeds_to_tell(const Difference& paired, double bound);

/// Values of equal index have the same seed. At least one of each, as many of both, and a baseline above 0.
[[nodiscard]] Difference paired_difference(std::span<const double> arm, std::span<const double> baseline);
/// Values that have nothing to do with each other (Welch's interval; where one side has a single
/// value, it is taken to be as noisy as the other). At least one of each.
[[nodiscard]] Difference unpaired_difference(std::span<const double> arm, std::span<const double> baseline);

}  // namespace isthmus::app
