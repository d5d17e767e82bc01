#pragma once
// How long a training step of an experiment takes on this machine, found out by making some.

#include <cstdint>

#include "run/experiment.h"

namespace isthmus::app {

/// Seconds, the median of some steps on random ids below `vocab`: inner.batch sequences, forward, backward
/// and the inner optimizer, without loader and outer loop. Takes about two seconds, or four steps where those
/// are longer. Throws as a worker would, where the device or memory is not there.
[[nodiscard]] double measure_step(const Experiment& experiment, std::int64_t vocab);

}  // namespace isthmus::app
