// The `isthmus` binary: all verbs.

#include <filesystem>

#include "commands.h"
#include "isthmus/base/error.h"
#include "launch.h"

namespace {

using namespace isthmus;
using namespace isthmus::app;

void add_launch(CommandLine& commands) {
  auto& flags = commands.flags();
  auto* verb = commands.app().add_subcommand(
      "launch", "start a coordinator and all replicas of an experiment on this machine");
  verb->add_option("config", flags.config, "experiment in YAML");
  verb->add_option("--resume", flags.name, "a run's folder: go on from its newest checkpoint");
  commands.add_set(*verb);
  verb->footer("Example: isthmus launch configs/quickstart.yaml --set outer.sync_every=60");
  commands.on(*verb, [&flags] {
    const bool resume = !flags.name.empty();
    if (resume != flags.config.empty())
      throw Error(ErrorKind::config, "launch needs a config file, or --resume FOLDER, and not both");
    return run_launch({.config = resume ? flags.name : flags.config,
                       .assignments = flags.set,
                       .resume = resume,
                       .program = std::filesystem::read_symlink("/proc/self/exe")});
  });
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine commands("isthmus: one language model on machines that are far apart",
                       {.torch = ISTHMUS_TORCH_VERSION, .cuda = ISTHMUS_CUDA_ARCHITECTURES});
  add_launch(commands);
  commands.add_coordinator();
  commands.add_worker(run_worker);
  commands.add_config();
  commands.add_replay();
  return commands.run(argc, argv);
}
