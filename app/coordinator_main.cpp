// The `isthmus-coordinator` binary: what needs no trainer, and so no libtorch. For the machine at a third
// place.

#include "cli/trainer_verbs.h"

int main(int argc, char** argv) {
  isthmus::app::CommandLine commands(
      "isthmus-coordinator: what a machine that trains nothing can do for a run", {});
  return isthmus::app::run_verbs(commands, nullptr, argc, argv);
}
