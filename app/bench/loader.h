#pragma once
// `isthmus bench loader`: measures how fast a config's data is loaded, without a model.

#include <cstdint>
#include <filesystem>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct LoaderBenchRequest {
  Experiment experiment;
  double seconds = 10;         ///< duration of each of the two passes
  config::Duration step_time;  ///< between two batches of the second pass; 0: no second pass
  std::filesystem::path out;   ///< file for the figures as JSON; empty: no file
  bool json = false;           ///< print the figures as JSON
};

/// Loads batches like the first replica: first as fast as possible, then, with a step time, at the pace of
/// training. Prints tokens and bytes per second, the peak memory, and how long training would have waited.
/// Throws the errors of the corpus and the loader.
int run_loader_bench(const LoaderBenchRequest& request);

}  // namespace isthmus::app
