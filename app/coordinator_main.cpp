// The `isthmus-coordinator` binary: what needs no trainer, and so no libtorch. For the machine at a third
// place.

#include "commands.h"

int main(int argc, char** argv) {
  isthmus::app::CommandLine commands(
      "isthmus-coordinator: what a machine that trains nothing can do for a run", {});
  commands.add_coordinator();
  commands.add_worker({});
  commands.add_config();
  commands.add_replay();
  commands.add_certs();
  commands.add_data();
  commands.add_bench();
  commands.add_trace();
  return commands.run(argc, argv);
}
