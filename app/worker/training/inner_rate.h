#pragma once
// The learning rate of a worker's inner steps.

#include <cstdint>

#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Steps over which the learning rate rises after the inner optimizer was reset: moments that start from zero
/// are unreliable at first.
inline constexpr std::uint64_t join_ramp_steps = 20;

/// For the inner step that leads to agreed step `step`, `ramp_steps` inner steps after the optimizer was
/// reset.
[[nodiscard]] double inner_rate(const Experiment& experiment, std::uint64_t step, std::uint64_t ramp_steps);

}  // namespace isthmus::app
