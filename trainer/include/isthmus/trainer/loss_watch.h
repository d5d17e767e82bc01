#pragma once
// Tells a loss that leaves its course. Plain values in, a verdict out.

#include <cstdint>
#include <optional>

namespace isthmus::trainer {

/// A loss far above what it was of late, in nats per token.
struct LossSpike {
  double loss = 0, usual = 0;
  double deviations = 0;  ///< how many standard deviations above `usual`
};

class LossWatch {
 public:
  /// The loss of the next step. A spike is told once, where it begins: the next one only after the loss has
  /// been within its usual bounds for `calm_steps`. It does not count for what is usual.
  [[nodiscard]] std::optional<LossSpike> add(double loss);

  /// Before so many steps nothing is usual yet.
  static constexpr std::uint64_t first_steps = 50;
  static constexpr std::uint64_t calm_steps = 10;
  /// A batch in some hundred million is as far off by chance, if losses are spread normally.
  static constexpr double spike_deviations = 6;
  /// Less than this part of the loss above it is no spike, however even the course.
  static constexpr double min_rise = 0.05;

 private:
  static constexpr double weight = 1.0 / 64;  ///< of the newest loss
  double mean_ = 0, variance_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t calm_ = calm_steps;  ///< steps in a row without a spike
};

}  // namespace isthmus::trainer
