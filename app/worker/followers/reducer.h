#pragma once
// `isthmus worker --reduce-only`: a member that owns chunks and reduces them. It has no model and no data,
// and stores nothing on disk. No app/participant: it has no outer loop and no steps, only one blocking call.

#include "worker/setup/request.h"

namespace isthmus::app {

/// Exit status: 0 the run has finished, 130 stopped by Ctrl-C, 143 left the run after SIGTERM. Throws Error
/// if it cannot reduce.
[[nodiscard]] int run_reducer(WorkerRequest request);

}  // namespace isthmus::app
