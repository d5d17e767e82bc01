#pragma once
// `isthmus worker`: one replica. Loads the data, joins the run, trains, reports.

#include <string>
#include <vector>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct WorkerRequest {
  Experiment experiment;
  std::string name;
  bool resume = false;
  bool quiet = false;                     ///< no progress line: `launch` shows the coordinator's
  std::string build;                      ///< of this binary, for messages about different builds
  std::vector<std::string> program = {};  ///< command that starts this binary, for ranks
};

/// Exit status: 0 finished, 130 stopped by Ctrl-C, 143 left the run after SIGTERM. Throws Error if it cannot
/// train.
[[nodiscard]] int run_worker(WorkerRequest request);

}  // namespace isthmus::app
