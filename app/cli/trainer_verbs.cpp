#include "cli/trainer_verbs.h"

#include <memory>

#include "cli/ctl_command.h"
#include "cli/top_command.h"
#include "compare/command.h"
#include "launch/join.h"
#include "launch/launch_command.h"
#include "plan/command.h"

namespace isthmus::app {

namespace {

void add_observe(CommandLine& commands, const TrainerVerbs& verbs) {
  auto& flags = commands.flags();
  auto* verb = commands.app().add_subcommand("observe", "follow and evaluate a live run without joining it");
  verb->add_option("--config,config", flags.config, "the run's experiment in YAML")->required();
  verb->add_option("--coordinator", flags.coordinator, "HOST:PORT");
  verb->add_option("--name", flags.name, "observer name, unique in the run; also the name of its folder")
      ->required();
  verb->add_option("--out", flags.out,
                   "safetensors file for the newest global parameters, written at the end");
  auto* once = verb->add_flag("--once", flags.once, "copy the state, evaluate it once, and exit");
  commands.add_security(*verb);
  commands.add_set(*verb);
  commands.add_json(*verb)->needs(once);
  verb->footer("Example: isthmus observe --config two_sites.yaml --coordinator eu.example:7000 --name watch");
  commands.on(*verb, [&commands, &flags, run = verbs.observe] {
    return run({.experiment = commands.load(),
                .name = flags.name,
                .out = flags.out,
                .json = flags.json,
                .once = flags.once,
                .build = commands.build()});
  });
}

void add_export(CommandLine& commands, const TrainerVerbs& verbs) {
  auto& flags = commands.flags();
  auto* verb = commands.app().add_subcommand("export", "write a run's model in Hugging Face's layout");
  verb->add_option("run", flags.model, "folder of the run")->required();
  verb->add_option("--to", flags.out, "output folder for config.json, model.safetensors and the tokenizer")
      ->required();
  commands.add_set(*verb);
  commands.add_json(*verb);
  verb->footer("Example: isthmus export runs/quickstart --to quickstart-model");
  commands.on(*verb, [&flags, run = verbs.write_model] {
    return run({flags.model, flags.out, flags.set, flags.json});
  });
}

void add_eval(CommandLine& commands, const TrainerVerbs& verbs) {
  auto& flags = commands.flags();
  auto* verb =
      commands.app().add_subcommand("eval", "report loss, perplexity and bits per byte of a trained model");
  verb->add_option("model", flags.model, "folder of a run, or of a model in Hugging Face's layout")
      ->required();
  verb->add_option("--data", flags.corpus,
                   "text to evaluate, as in data.path; by default the run's held-out part");
  verb->add_option("--out", flags.out, "write the figures to this file as JSON");
  commands.add_json(*verb);
  commands.add_set(*verb);
  verb->footer("Example: isthmus eval runs/quickstart --data /data/other.txt");
  commands.on(*verb, [&flags, run = verbs.evaluate] {
    return run({flags.model, flags.corpus, flags.out, flags.json, flags.set});
  });
}

void add_sample(CommandLine& commands, const TrainerVerbs& verbs) {
  auto& flags = commands.flags();
  auto* verb = commands.app().add_subcommand("sample", "generate text from a trained model");
  verb->add_option("model", flags.model, "folder of a run, or of a model in Hugging Face's layout")
      ->required();
  verb->add_option("--prompt", flags.prompt, "prompt text; by default the start of a document");
  verb->add_option("--tokens", flags.tokens, "number of tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  verb->add_option("--temperature", flags.temperature, "sampling temperature; 0 takes the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--seed", flags.seed, "sampling seed")->capture_default_str();
  commands.add_set(*verb);
  commands.add_json(*verb);
  verb->footer("Example: isthmus sample runs/quickstart --prompt 'namespace at {'");
  commands.on(*verb, [&flags, run = verbs.sample] {
    return run({.model = flags.model,
                .prompt = flags.prompt,
                .json = flags.json,
                .options = {.tokens = flags.tokens, .temperature = flags.temperature, .seed = flags.seed},
                .assignments = flags.set});
  });
}

void add_selftest(CommandLine& commands, const TrainerVerbs& verbs) {
  const auto request = std::make_shared<SelftestRequest>();
  auto* verb = commands.app().add_subcommand(
      "selftest", "check that codecs, training steps and ranks compute correctly on this machine");
  verb->add_option("--gpus", request->gpus, "GPUs to check, each also as a rank: all, or a number");
  verb->add_option("--ranks", request->ranks,
                   "number of ranks of the replica to check, on the CPU unless --gpus is given")
      ->check(CLI::Range(2, 64));
  commands.add_json(*verb);
  verb->footer("Example: isthmus selftest --gpus all");
  commands.on(*verb, [&commands, request, run = verbs.selftest] {
    request->json = commands.flags().json;
    request->program = commands.program();
    return run(*request);
  });
}

/// A hidden verb: `worker` and `selftest` start it for each rank.
void add_rank(CommandLine& commands, const TrainerVerbs& verbs) {
  const auto request = std::make_shared<RankRequest>();
  auto* verb = commands.app().add_subcommand("rank", "one of the ranks of a replica")->group("");
  verb->add_option("--folder", request->folder, "folder of the replica")->required();
  verb->add_option("--rank", request->rank, "number of the rank")->required();
  verb->add_option("--socket", request->socket, "descriptor of the rank's socket")->required();
  commands.on(*verb, [request, run = verbs.rank] { return run(*request); });
}

}  // namespace

int run_verbs(CommandLine& commands, const TrainerVerbs* trainer, int argc, char** argv) {
  const TrainerVerbs none;
  const auto& verbs = trainer != nullptr ? *trainer : none;
  add_launch(commands);
  add_attach(commands);
  add_tether(commands);
  CompareRequest comparison;
  add_compare(commands, comparison);
  commands.add_coordinator();
  commands.add_worker(verbs.worker);
  add_join(commands, verbs.worker);
  add_doctor(commands, verbs.device);
  if (trainer != nullptr) {
    add_observe(commands, verbs);
    add_export(commands, verbs);
    add_eval(commands, verbs);
    add_sample(commands, verbs);
  }
  commands.add_config();
  commands.add_replay();
  commands.add_certs();
  commands.add_data();
  commands.add_bench();
  commands.add_trace();
  TopRequest top;
  add_top(commands, top);
  CtlRequest ctl;
  add_ctl(commands, ctl);
  add_plan(commands, verbs.measure_step);
  commands.add_help();
  commands.add_completion();
  if (trainer != nullptr) {
    add_selftest(commands, verbs);
    add_rank(commands, verbs);
  }
  return commands.run(argc, argv);
}

}  // namespace isthmus::app
