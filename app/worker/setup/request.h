#pragma once
// The request for a worker or a reducer: its config, its name, and how it runs.

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

}  // namespace isthmus::app
