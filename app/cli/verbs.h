#pragma once
// All verbs. `isthmus` has them twice: in the program, where verbs that train load the trainer library, and
// in that library, where these verbs train. `isthmus-coordinator` has no verbs that train.

#include <functional>

#include "cli/model_command.h"
#include "cli/run_command.h"
#include "command_line/command_line.h"
#include "doctor/doctor.h"
#include "plan/plan.h"

namespace isthmus::app {

/// The trainer's functions for the verbs that need it.
struct TrainerVerbs {
  std::function<int(WorkerRequest)> worker;
  std::function<int(ObserveRequest)> observe;
  ModelVerbs model;
  DeviceProbe device;
  MeasureStep measure_step;
};

/// Adds the verbs and runs the one in the arguments. If `trainer` is null, leaves out the verbs that need it.
/// Returns the exit status.
[[nodiscard]] int run_verbs(CommandLine& commands, const TrainerVerbs* trainer, int argc, char** argv);

}  // namespace isthmus::app
