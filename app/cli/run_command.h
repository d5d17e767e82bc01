#pragma once
// `isthmus coordinator`, `worker` and `observe`: the processes of a run, each started by itself.

#include <functional>

#include "command_line/command_line.h"
#include "model/observe.h"
#include "worker/worker.h"

namespace isthmus::app {

void add_coordinator(CommandLine& commands);
/// `train` runs a worker without --reduce-only; null in a binary without a trainer.
void add_worker(CommandLine& commands, std::function<int(WorkerRequest)> train);
void add_observe(CommandLine& commands, std::function<int(ObserveRequest)> observe);

}  // namespace isthmus::app
