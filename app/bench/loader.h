#pragma once
// `isthmus bench loader`: how fast a config's data comes, without a model.

#include <cstdint>
#include <filesystem>

#include "run/experiment.h"

namespace isthmus::app {

struct LoaderBenchRequest {
  Experiment experiment;
  double seconds = 10;         ///< of each of two passes
  config::Duration step_time;  ///< training takes that long between two batches in the second pass; 0: none
  std::filesystem::path out;   ///< gets the figures as JSON; empty for none
  bool json = false;           ///< print them
};

/// Loads batches as the first replica would, as fast as it goes; then, with a step time, as training would
/// ask for them. Prints tokens and bytes per second, what the host holds meanwhile, and how long training
/// would have waited. Throws what the corpus and the loader throw.
int run_loader_bench(const LoaderBenchRequest& request);

}  // namespace isthmus::app
