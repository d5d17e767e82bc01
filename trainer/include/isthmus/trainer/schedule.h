#pragma once
// The inner learning rate at each step. A pure function of the agreed config, the same bits on every machine:
// during synchronous warm-up what it multiplies becomes agreed state.

#include <cstdint>

#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

/// cos(pi x) for x in [0, 1] by its Taylor polynomial of degree 16 about pi/2's nearer side, in double
/// without the C library, whose last bit differs between versions. Absolute error below 1e-15.
[[nodiscard]] double cos_pi(double x);

/// Learning rate of `step` (1 .. steps). With w = warmup_steps and r = min_lr_ratio:
///   step <= w   lr step / w
///   constant    lr
///   cosine      lr (r + (1 - r) (1 + cos(pi x)) / 2),  x = (step - w) / (steps - w)
///   wsd         lr until the last decay_fraction of all steps, in which it falls linearly to r lr at `steps`
/// Steps after the last have the last one's rate.
[[nodiscard]] double learning_rate(const InnerConfig& config, std::uint64_t step, std::uint64_t steps);

}  // namespace isthmus::trainer
