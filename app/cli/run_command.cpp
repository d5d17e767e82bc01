#include "cli/run_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>
#include <utility>

#include "coordinator/coordinator.h"
#include "isthmus/base/error.h"
#include "plan/choose.h"
#include "run/process/process.h"
#include "worker/followers/reducer.h"

namespace isthmus::app {

namespace {

struct CoordinatorFlags : ConfigOptions {
  std::vector<std::string> given_up;
  bool resume = false, recover = false, json = false;
  int announce_fd = -1;
};

int run_coordinator_verb(const CoordinatorFlags& flags, const std::string& build) {
  auto loaded = load_and_choose(flags.config, flags.assignments(), std::nullopt, Purpose::own_data);
  return run_coordinator({.experiment = std::move(loaded.experiment),
                          .chosen = std::move(loaded.chosen),
                          .announce_fd = flags.announce_fd,
                          .resume = flags.resume,
                          .json = flags.json,
                          .build = build,
                          .recover = flags.recover,
                          .given_up = {flags.given_up.begin(), flags.given_up.end()}});
}

struct WorkerFlags : ConfigOptions {
  std::string name, site;
  bool resume = false, quiet = false, reduce_only = false;

  /// The same options for a program that trains instead of `isthmus worker` (worker.command).
  [[nodiscard]] std::vector<std::string> words() const {
    std::vector<std::string> words = {"--config", config, "--name", name};
    for (const auto& [option, value] : {std::pair("--coordinator", &coordinator),
                                        {"--site", &site},
                                        {"--listen", &listen},
                                        {"--advertise", &advertise},
                                        {"--certs", &certs}}) {
      if (!value->empty()) words.insert(words.end(), {option, *value});
    }
    if (!secret.empty()) words.insert(words.end(), {"--set", "network.secret=\"" + secret + "\""});
    for (const auto& assignment : set) words.insert(words.end(), {"--set", assignment});
    if (insecure) words.emplace_back("--insecure");
    if (resume) words.emplace_back("--resume");
    if (quiet) words.emplace_back("--quiet");
    return words;
  }
};

int run_worker_verb(const WorkerFlags& flags, const CommandLine& commands,
                    const std::function<int(WorkerRequest)>& train) {
  // Sites have trainers; a reducer may be at none of them.
  const bool reduces_anywhere = flags.reduce_only && flags.site.empty();
  const auto place = reduces_anywhere ? std::nullopt : std::optional(WorkerPlace{flags.name, flags.site});
  WorkerRequest request{
      .experiment = load_and_choose(flags.config, flags.assignments(), place, Purpose::training).experiment,
      .name = flags.name,
      .resume = flags.resume,
      .quiet = flags.quiet,
      .build = commands.build(),
      .program = commands.program()};
  if (flags.reduce_only) return run_reducer(request);
  if (auto program = request.experiment.worker.words(); !program.empty()) {
    for (auto& word : flags.words()) program.push_back(std::move(word));
    become_program(std::move(program), "worker.command");
  }
  if (!train)
    throw Error(ErrorKind::config, "this binary cannot train: pass --reduce-only, or start `isthmus worker`");
  return train(std::move(request));
}

/// In version 0.3 `observe --out` named the file that is now named by --parameters.
void refuse_file(const std::filesystem::path& out) {
  if (out.extension() == ".safetensors")
    throw Error(
        ErrorKind::config,
        fmt::format("--out is {}, the name of a file; expected a folder for the model in Hugging Face's "
                    "layout, or `--parameters {}` for the safetensors file",
                    out.string(), out.string()));
}

}  // namespace

void add_coordinator(CommandLine& commands) {
  const auto flags = std::make_shared<CoordinatorFlags>();
  auto* verb =
      commands.app().add_subcommand("coordinator", "form the run, show its progress, write its summary");
  add_config_file(*verb, flags->config)->required();
  verb->add_option("--listen", flags->coordinator,
                   "ADDRESS:PORT to listen on; overrides network.coordinator");
  verb->add_flag("--resume", flags->resume, "the workers resume from their checkpoints");
  verb->add_flag("--recover", flags->recover,
                 "take over a live run from its members when the coordinator's own state is lost");
  verb->add_option("--give-up", flags->given_up,
                   "with --recover: NAME[,NAME] of trainers that will not return; their rounds may be lost")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_option("--announce-fd", flags->announce_fd, "descriptor that gets the port, for launchers")
      ->group("");
  add_security(*verb, *flags);
  add_set(*verb, flags->set);
  add_json(*verb, flags->json);
  verb->footer("Example: isthmus coordinator two_sites.yaml --listen 0.0.0.0:7000");
  commands.on(*verb, [&commands, flags] { return run_coordinator_verb(*flags, commands.build()); });
}

void add_worker(CommandLine& commands, std::function<int(WorkerRequest)> train) {
  const auto flags = std::make_shared<WorkerFlags>();
  auto* verb = commands.app().add_subcommand(
      "worker", train ? "train one replica, or only reduce" : "reduce chunks for the trainers");
  add_config_file(*verb, flags->config)->required();
  verb->add_option("--coordinator", flags->coordinator,
                   "HOST:PORT of the coordinator; overrides network.coordinator");
  verb->add_option("--name", flags->name, "worker name, unique in the run")->required();
  verb->add_option("--site", flags->site,
                   "site that provides the settings; by default the site of the worker's name");
  verb->add_option("--listen", flags->listen, "ADDRESS:PORT for peers, or none; overrides network.listen");
  verb->add_option("--advertise", flags->advertise, "HOST:PORT that peers dial; overrides network.advertise");
  verb->add_flag("--reduce-only", flags->reduce_only, "reduce chunks only, without a model or data");
  verb->add_flag("--resume", flags->resume, "resume from the newest checkpoint that all replicas have");
  verb->add_flag("--quiet", flags->quiet, "print no progress line");
  add_security(*verb, *flags);
  add_set(*verb, flags->set);
  verb->footer(
      "Example: isthmus worker two_sites.yaml --coordinator eu.example:7000 --name us-1 "
      "--listen 0.0.0.0:7001 --advertise us.example:7001");
  commands.on(*verb, [&commands, flags, train = std::move(train)] {
    return run_worker_verb(*flags, commands, train);
  });
}

void add_observe(CommandLine& commands, std::function<int(ObserveRequest)> observe) {
  struct Flags : ConfigOptions {
    ObserveRequest request;
  };
  const auto flags = std::make_shared<Flags>();
  auto& request = flags->request;
  auto* verb = commands.app().add_subcommand("observe", "follow and evaluate a live run without joining it");
  add_config_file(*verb, flags->config, "the run's experiment in YAML")->required();
  verb->add_option("--coordinator", flags->coordinator,
                   "HOST:PORT of the coordinator; overrides network.coordinator");
  verb->add_option("--name", request.name, "observer name, unique in the run; also the name of its folder")
      ->required();
  verb->add_option("--out,--to", request.out,
                   "folder that is kept up to date with the model in Hugging Face's layout: new, empty, or "
                   "written by an earlier `observe --out`");
  verb->add_option("--every", request.every,
                   "evaluate, and write --out, at each multiple of this step; by default of run.eval_every")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  verb->add_option("--parameters", request.parameters,
                   "safetensors file for the newest global parameters, written at the end");
  auto* once = verb->add_flag("--once", request.once, "copy the state, evaluate it once, and exit");
  add_security(*verb, *flags);
  add_set(*verb, flags->set);
  add_json(*verb, request.json)->needs(once);
  verb->footer(
      "Example: isthmus observe two_sites.yaml --coordinator eu.example:7000 --name watch --out "
      "newest-model");
  commands.on(*verb, [&commands, flags, observe = std::move(observe)] {
    auto& given = flags->request;
    refuse_file(given.out);
    // Without data here there is nothing to evaluate on, but the model can be written.
    const auto purpose =
        given.out.empty() && given.parameters.empty() ? Purpose::training : Purpose::inference;
    given.experiment = load_and_choose(flags->config, flags->assignments(), std::nullopt, purpose).experiment;
    given.build = commands.build();
    return observe(given);
  });
}

}  // namespace isthmus::app
