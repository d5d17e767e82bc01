#pragma once
// The verbs for trained models (`export`, `eval`, `sample`), for audits of a run, and for checks of the
// trainer itself.

#include <functional>

#include "audit/audit.h"
#include "command_line/command_line.h"
#include "model/eval.h"
#include "model/export.h"
#include "model/sample.h"
#include "model/selftest.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {

/// The trainer's functions for these verbs.
struct ModelVerbs {
  std::function<int(const ExportRequest&)> write_model;
  std::function<int(const EvalRequest&)> evaluate;
  std::function<int(const SampleRequest&)> sample;
  std::function<int(const AuditRequest&)> audit;
  std::function<int(const SelftestRequest&)> selftest;
  std::function<int(const RankRequest&)> rank;
};

void add_model_verbs(CommandLine& commands, const ModelVerbs& verbs);
void add_audit(CommandLine& commands, const ModelVerbs& verbs);
/// `selftest`, and the hidden verb `rank`, which `worker` and `selftest` start for each rank.
void add_checks(CommandLine& commands, const ModelVerbs& verbs);

}  // namespace isthmus::app
