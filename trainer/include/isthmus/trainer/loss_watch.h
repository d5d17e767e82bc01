#pragma once
// Detects spikes of the loss, from plain values.

#include <cstdint>
#include <optional>

namespace isthmus::trainer {

/// A loss far above its recent level, in nats per token.
struct LossSpike {
  double loss = 0, usual = 0;
  double deviations = 0;  ///< standard deviations above `usual`
};

class LossWatch {
 public:
  /// Takes the loss of the next step. Reports a spike once, when it begins; the next one only after the loss
  /// was within its usual bounds for `calm_steps`. Losses in a spike do not change what is usual.
  [[nodiscard]] std::optional<LossSpike> add(double loss);

  /// Number of steps before there is a usual level.
  static constexpr std::uint64_t first_steps = 50;
  static constexpr std::uint64_t calm_steps = 10;
  /// If losses are normally distributed, about one batch in a billion exceeds this by chance.
  static constexpr double spike_deviations = 6;
  /// Minimum rise of a spike, as a fraction of the usual loss, however small the deviation is.
  static constexpr double min_rise = 0.05;

 private:
  static constexpr double weight = 1.0 / 64;  ///< weight of the newest loss
  double mean_ = 0, variance_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t calm_ = calm_steps;  ///< consecutive steps without a spike
};

}  // namespace isthmus::trainer
