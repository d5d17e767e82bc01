#include "cli/verbs.h"

#include "bench/command.h"
#include "cli/files/certs_command.h"
#include "cli/files/config_command.h"
#include "cli/files/data_command.h"
#include "cli/files/init_command.h"
#include "cli/files/replay.h"
#include "cli/files/trace_summary.h"
#include "cli/help/completion.h"
#include "cli/help/help_command.h"
#include "cli/live/ctl_command.h"
#include "cli/live/top_command.h"
#include "compare/command.h"
#include "launch/join.h"
#include "launch/launch_command.h"
#include "plan/command.h"

namespace isthmus::app {

int run_verbs(CommandLine& commands, const TrainerVerbs* trainer, int argc, char** argv) {
  const auto verbs = trainer != nullptr ? *trainer : TrainerVerbs();
  add_launch(commands);
  add_attach(commands);
  add_tether(commands);
  add_give_model(commands);
  add_compare(commands);
  add_coordinator(commands);
  add_worker(commands, verbs.worker);
  add_join(commands, verbs.worker);
  add_doctor(commands, verbs.device);
  if (trainer != nullptr) {
    add_observe(commands, verbs.observe);
    add_model_verbs(commands, verbs.model);
  }
  add_init(commands);
  add_config(commands);
  add_replay(commands);
  add_certs(commands);
  add_data(commands);
  add_bench(commands);
  add_trace(commands);
  add_top(commands);
  add_ctl(commands);
  add_plan(commands, verbs.measure_step);
  add_help(commands);
  add_completion(commands);
  if (trainer != nullptr) add_checks(commands, verbs.model);
  return commands.run(argc, argv);
}

}  // namespace isthmus::app
