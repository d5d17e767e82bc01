#pragma once
// The inner learning rate at each step: a pure function of the agreed config, with the same bits on every
// machine, since during synchronous warm-up it affects agreed state.

#include <cstdint>

#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

/// cos(pi x) for x in [0, 1] in double by Taylor polynomials, without the C library, the last bit of which
/// differs between versions. Absolute error below 1e-15.
[[nodiscard]] double cos_pi(double x);

/// Learning rate of `step` (1 .. steps). With w = warmup_steps and r = min_lr_ratio:
///   step <= w   lr step / w
///   constant    lr
///   cosine      lr (r + (1 - r) (1 + cos(pi x)) / 2),  x = (step - w) / (steps - w)
///   wsd         lr until the last decay_fraction of all steps, in which it falls linearly to r lr at `steps`
/// Steps after the last have the rate of the last one.
[[nodiscard]] double learning_rate(const InnerConfig& config, std::uint64_t step, std::uint64_t steps);

}  // namespace isthmus::trainer
