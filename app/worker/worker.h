#pragma once
// `isthmus worker`: one replica. Loads the data, joins the run, trains, reports.

#include <string>
#include <vector>

#include "run/experiment.h"

namespace isthmus::app {

struct WorkerRequest {
  Experiment experiment;
  std::string name;
  bool resume = false;
  bool quiet = false;                     ///< no progress line: `launch` shows the coordinator's
  std::string build;                      ///< of this binary, for messages about unequal ones
  std::vector<std::string> program = {};  ///< this binary, for ranks: the first words of a command
};

/// Exit status: 0 finished, 130 stopped by Ctrl-C, 143 left the run after SIGTERM. Throws Error for
/// everything that keeps it from training.
[[nodiscard]] int run_worker(WorkerRequest request);

}  // namespace isthmus::app
