#pragma once
// Measures how long a training step of an experiment takes on this machine.

#include <cstdint>

#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Seconds: the median of some steps on random ids below `vocab`, each with inner.batch sequences, forward,
/// backward and the inner optimizer, without loader and outer loop. Takes about two seconds, or four steps if
/// those take longer. Throws as a worker would if the device or memory is missing.
[[nodiscard]] double measure_step(const Experiment& experiment, std::int64_t vocab);

}  // namespace isthmus::app
