#pragma once
// The command line of `isthmus`: all verbs. The program has it without a trainer; the trainer, which the
// program loads where a verb needs it, has it with one.

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

/// What a trainer does for the verbs that need one.
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

/// Adds all verbs and runs the one that is named. Exit status.
[[nodiscard]] int run_isthmus(CommandLine& commands, const TrainerVerbs& verbs, int argc, char** argv);

}  // namespace isthmus::app
