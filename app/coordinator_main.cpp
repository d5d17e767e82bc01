// The `isthmus-coordinator` binary: what needs no trainer, and so no libtorch. For the machine at a third
// place.

#include "cli/commands.h"
#include "cli/ctl_command.h"
#include "cli/top_command.h"
#include "compare/command.h"
#include "doctor/doctor.h"
#include "launch/join.h"
#include "launch/launch_command.h"
#include "plan/command.h"

int main(int argc, char** argv) {
  isthmus::app::CommandLine commands(
      "isthmus-coordinator: what a machine that trains nothing can do for a run", {});
  add_launch(commands);
  add_attach(commands);
  add_tether(commands);
  isthmus::app::CompareRequest comparison;
  isthmus::app::add_compare(commands, comparison);
  commands.add_coordinator();
  commands.add_worker({});
  add_join(commands, {});
  add_doctor(commands, {});
  commands.add_config();
  commands.add_replay();
  commands.add_certs();
  commands.add_data();
  commands.add_bench();
  commands.add_trace();
  isthmus::app::TopRequest top;
  isthmus::app::add_top(commands, top);
  isthmus::app::CtlRequest ctl;
  isthmus::app::add_ctl(commands, ctl);
  isthmus::app::add_plan(commands, {});
  commands.add_help();
  commands.add_completion();
  return commands.run(argc, argv);
}
