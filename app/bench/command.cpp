#include "bench/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <utility>

#include "bench/bench.h"
#include "bench/loader.h"
#include "isthmus/base/error.h"
#include "plan/model_size.h"

namespace isthmus::app {

namespace {

struct OuterFlags : ConfigOptions {
  OuterBenchRequest request;
  std::string params, step_time, role = "all";
  std::int64_t steps = 0, replicas = 0;
};

int run_bench_outer_verb(OuterFlags flags, const CommandLine& commands) {
  using Role = OuterBenchRequest::Role;
  auto& request = flags.request;
  const bool replica = flags.role == "replica";
  if (replica == request.name.empty()) {
    throw Error(ErrorKind::config, replica ? "--role replica needs a --name" : "--name needs --role replica");
  }
  request.parameters = parameter_count(flags.params);
  request.step_time = step_duration(flags.step_time);
  request.build = commands.build();
  request.command = commands.program();
  request.command.insert(request.command.end(), {"bench", "outer"});
  const auto pass_on = [&](const char* flag, const std::string& value) {
    if (!value.empty()) request.command.insert(request.command.end(), {flag, value});
  };
  pass_on("--params", flags.params);
  pass_on("--step-time", flags.step_time);
  pass_on("--steps", flags.steps > 0 ? fmt::format("{}", flags.steps) : "");
  pass_on("--config", flags.config);
  pass_on("--certs", flags.certs);
  if (flags.replicas > 0) flags.set.push_back(fmt::format("replicas={}", flags.replicas));
  for (const auto& assignment : flags.set) pass_on("--set", assignment);
  if (flags.insecure) request.command.emplace_back("--insecure");
  if (flags.role == "coordinator") {
    request.role = Role::coordinator;
    flags.coordinator = std::exchange(flags.listen, {});
  }
  if (replica) request.role = Role::replica;
  const auto place = replica ? std::optional(WorkerPlace{request.name, {}}) : std::nullopt;
  request.experiment = load_experiment(flags.config, flags.assignments(), place, Purpose::benchmark);
  make_measurable(request.experiment, flags.steps);
  return run_outer_bench(std::move(request));
}

void add_outer(CommandLine& commands, CLI::App& bench) {
  const auto flags = std::make_shared<OuterFlags>();
  auto& request = flags->request;
  auto* verb = bench.add_subcommand(
      "outer", "run the outer loop with steps that only sleep: does it keep up over this link?");
  verb->add_option("--params", flags->params, "number of parameters, for example 200M")->required();
  verb->add_option("--step-time", flags->step_time, "time of an inner step, for example 500ms")->required();
  verb->add_option("--replicas", flags->replicas, "number of replicas; overrides the key replicas")
      ->check(CLI::Range(1, 1024));
  verb->add_option("--steps", flags->steps, "number of steps; by default enough for two sync intervals")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000'000}));
  add_config_file(*verb, flags->config, "experiment in YAML; its outer and network keys are used");
  verb->add_option("--out", request.out, "file for the coordinator's figures as JSON");
  add_json(*verb, request.json);
  verb->add_option("--role", flags->role, "which part to start, when the parts run on several machines")
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "coordinator", "replica"}));
  verb->add_option("--name", request.name, "name of this replica");
  verb->add_option("--coordinator", flags->coordinator, "HOST:PORT of the coordinator, for a replica");
  verb->add_option("--listen", flags->listen,
                   "ADDRESS:PORT to listen on, as the coordinator or for a replica's peers");
  verb->add_option("--advertise", flags->advertise, "HOST:PORT that a replica's peers dial");
  verb->add_flag("--quiet", request.quiet, "print errors only, for a replica");
  verb->add_option("--announce-fd", request.announce_fd)->group("");
  add_security(*verb, *flags);
  add_set(*verb, flags->set);
  verb->footer(
      "Example: isthmus bench outer --params 200M --step-time 500ms --set network.emulate.rate=40Mbps");
  commands.on(*verb, [&commands, flags] { return run_bench_outer_verb(*flags, commands); });
}

void add_loader(CommandLine& commands, CLI::App& bench) {
  struct LoaderFlags : ConfigOptions {
    LoaderBenchRequest request;
    std::string step_time;
  };
  const auto flags = std::make_shared<LoaderFlags>();
  auto& request = flags->request;
  auto* verb = bench.add_subcommand("loader", "load a config's data: does it keep up with training?");
  add_config_file(*verb, flags->config)->required();
  verb->add_option("--step-time", flags->step_time,
                   "time of an inner step, for example 50ms; by default as fast as possible");
  verb->add_option("--seconds", request.seconds, "seconds for each measurement")
      ->check(CLI::Range(0.1, 86400.0));
  verb->add_option("--out", request.out, "write the figures to this file as JSON");
  add_json(*verb, request.json);
  add_set(*verb, flags->set);
  verb->footer("Example: isthmus bench loader configs/quickstart.yaml --step-time 50ms");
  commands.on(*verb, [flags] {
    auto& asked = flags->request;
    asked.experiment = load_experiment(flags->config, flags->set);
    if (!flags->step_time.empty()) asked.step_time = step_duration(flags->step_time);
    return run_loader_bench(asked);
  });
}

}  // namespace

void add_bench(CommandLine& commands) {
  auto* verb = commands.app().add_subcommand("bench", "measure parts of a run, without a model");
  verb->require_subcommand(1);
  add_outer(commands, *verb);
  add_loader(commands, *verb);
}

}  // namespace isthmus::app
