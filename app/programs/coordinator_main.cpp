// The `isthmus-coordinator` binary: all verbs that need no trainer, and so no libtorch. It is for a machine
// at a third location.

#include "cli/verbs.h"

int main(int argc, char** argv) {
  isthmus::app::CommandLine commands("isthmus-coordinator: the verbs of isthmus that need no trainer", {});
  return isthmus::app::run_verbs(commands, nullptr, argc, argv);
}
