#pragma once
// The verbs of all programs. `isthmus` has them twice: in the program, where verbs that train load the
// trainer library, and in that library, where these verbs train. `isthmus-coordinator` has no verbs that
// train.

#include <functional>
#include <string>

#include "cli/commands.h"
#include "doctor/doctor.h"
#include "model/eval.h"
#include "model/export.h"
#include "model/sample.h"
#include "model/selftest.h"
#include "plan/plan.h"
#include "worker/observe.h"
#include "worker/ranks.h"
#include "worker/worker.h"

namespace isthmus::app {

/// The trainer's functions for the verbs that need it.
struct TrainerVerbs {
  std::function<int(WorkerRequest)> worker;
  std::function<int(ObserveRequest)> observe;
  std::function<int(const ExportRequest&)> write_model;
  std::function<int(const EvalRequest&)> evaluate;
  std::function<int(const SampleRequest&)> sample;
  std::function<int(const SelftestRequest&)> selftest;
  std::function<int(const RankRequest&)> rank;
  DeviceProbe device;
  MeasureStep measure_step;
};

/// Adds the verbs and runs the one in the arguments. If `trainer` is null, leaves out the verbs that need it.
/// Returns the exit status.
[[nodiscard]] int run_verbs(CommandLine& commands, const TrainerVerbs* trainer, int argc, char** argv);

}  // namespace isthmus::app
