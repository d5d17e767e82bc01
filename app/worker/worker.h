#pragma once
// `isthmus worker`: one replica. Loads the data, joins the run, trains, reports.

#include "worker/setup/request.h"

namespace isthmus::app {

/// Exit status: 0 finished, 130 stopped by Ctrl-C, 143 left the run after SIGTERM. Throws Error if it cannot
/// train.
[[nodiscard]] int run_worker(WorkerRequest request);

}  // namespace isthmus::app
