#pragma once
// `isthmus coordinator`: forms the view, shows the run's progress, writes summary.json.

#include "experiment.h"

namespace isthmus::app {

struct CoordinatorRequest {
  Experiment experiment;
  int announce_fd = -1;  ///< gets "PORT\n" once the listener is bound
  bool resume = false;
  bool recover = false;  ///< form the run from its members, whatever this disk remembers
};

/// Exit status: 0 finished, 130 stopped by a signal, otherwise Error's.
[[nodiscard]] int run_coordinator(CoordinatorRequest request);

}  // namespace isthmus::app
