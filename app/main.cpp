// The `isthmus` binary: all verbs.

#include <filesystem>

#include "commands.h"
#include "isthmus/base/error.h"
#include "launch.h"
#include "observe.h"

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

void add_observe(CommandLine& commands) {
  auto& flags = commands.flags();
  auto* verb = commands.app().add_subcommand(
      "observe", "follow a live run and evaluate it here, without taking part in it");
  verb->add_option("--config,config", flags.config, "experiment in YAML, the run's")->required();
  verb->add_option("--coordinator", flags.coordinator, "HOST:PORT");
  verb->add_option("--name", flags.name, "of this observer, unique in the run; its folder's too")->required();
  verb->add_option("--out", flags.out,
                   "safetensors file for the newest global parameters, written at the end");
  verb->add_flag("--once", flags.once, "take the state, evaluate it, and leave");
  commands.add_security(*verb);
  commands.add_set(*verb);
  verb->footer("Example: isthmus observe --config two_sites.yaml --coordinator eu.example:7000 --name watch");
  commands.on(*verb, [&commands, &flags] {
    return run_observe({.experiment = commands.load(),
                        .name = flags.name,
                        .out = flags.out,
                        .once = flags.once,
                        .build = commands.build()});
  });
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine commands("isthmus: one language model on machines that are far apart",
                       {.torch = ISTHMUS_TORCH_VERSION, .cuda = ISTHMUS_CUDA_ARCHITECTURES});
  add_launch(commands);
  commands.add_coordinator();
  commands.add_worker(run_worker);
  add_observe(commands);
  commands.add_config();
  commands.add_replay();
  commands.add_certs();
  commands.add_data();
  commands.add_bench();
  commands.add_trace();
  return commands.run(argc, argv);
}
