#pragma once
// Compares the sizes of a corpus with what the run reads, for the row `data` of `isthmus doctor`.

#include <vector>

#include "isthmus/data/corpus.h"
#include "run/experiment/experiment.h"
#include "run/metrics/diagnosis.h"

namespace isthmus::app {

/// Warnings, for each data set, if training reads it more than four times over, or if its held-out part is
/// smaller than an evaluation. `corpus` must not be a stream: its size is unknown.
[[nodiscard]] std::vector<Finding> judge_sizes(const Experiment& experiment, const data::Corpus& corpus);

}  // namespace isthmus::app
