#include "cli/verbs.h"

#include <CLI/CLI.hpp>

#include "bench/command.h"
#include "cli/files/certs_command.h"
#include "cli/files/config_command.h"
#include "cli/files/data_command.h"
#include "cli/files/fetch_command.h"
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

namespace {
constexpr auto ungrouped = "Subcommands";  // CLI11's group of verbs that have no other
}  // namespace

int run_verbs(CommandLine& commands, const TrainerVerbs* trainer, int argc, char** argv) {
  const auto verbs = trainer != nullptr ? *trainer : TrainerVerbs();
  // The order and the groups of --help and docs/cli.md.
  const auto end_group = [&app = commands.app()](const char* name) {
    const auto is_new = [](const CLI::App* verb) { return verb->get_group() == ungrouped; };
    for (auto* verb : app.get_subcommands(is_new)) verb->group(name);
  };
  add_init(commands);
  add_launch(commands);
  add_attach(commands);
  add_compare(commands);
  add_coordinator(commands);
  add_worker(commands, verbs.worker);
  add_join(commands, verbs.worker);
  add_tether(commands);
  add_give_model(commands);
  end_group("Train");
  add_top(commands);
  if (trainer != nullptr) {
    add_observe(commands, verbs.observe);
    add_model_verbs(commands, verbs.model);
  }
  add_trace(commands);
  add_replay(commands);
  add_fetch(commands);
  end_group("Look at a run and its model");
  add_config(commands);
  add_plan(commands, verbs.measure_step);
  add_data(commands);
  end_group("Settings and data");
  add_ctl(commands);
  add_doctor(commands, verbs.device);
  add_certs(commands);
  add_bench(commands);
  if (trainer != nullptr) add_audit(commands, verbs.model);
  if (trainer != nullptr) add_checks(commands, verbs.model);
  add_help(commands);
  add_completion(commands);
  end_group("Operate and check");
  return commands.run(argc, argv);
}

}  // namespace isthmus::app
