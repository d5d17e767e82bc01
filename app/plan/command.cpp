#include "plan/command.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "isthmus/base/error.h"

namespace isthmus::app {

namespace {

/// "312T", "1.5P" or a plain number.
double flops_of(const std::string& text) {
  std::size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const auto unit = text.substr(end);
  const double scale = unit.empty() ? 1 : unit == "G" ? 1e9 : unit == "T" ? 1e12 : unit == "P" ? 1e15 : 0;
  if (end > 0 && value * scale >= 1e6 && value * scale <= 1e22) return value * scale;
  throw Error(ErrorKind::config,
              "--flops is '" + text + "'; expected operations per second, as 312T or 1.5P");
}

struct PlanFlags {
  PlanRequest request;
  std::string config, flops;
  std::vector<std::string> set;
  bool paper_table = false;
};

}  // namespace

void add_plan(CommandLine& commands, MeasureStep measure) {
  auto* verb = commands.app().add_subcommand(
      "plan", "predict a run's use of links, memory and disks, and find settings that keep it computing");
  const auto flags = std::make_shared<PlanFlags>();
  auto& request = flags->request;
  request.measure_step = std::move(measure);
  add_config_file(*verb, flags->config, "experiment in YAML; without it, the defaults with --params");
  auto* links = verb->add_option(
      "--links", request.links,
      "sites and their links in YAML, the output of `doctor --json` (.json), or the folder of a run");
  verb->add_option("--step-time", request.step_time, "time of an inner step, for example 500ms");
  verb->add_option("--flops", flags->flops,
                   "FLOP/s of a replica's devices, for example 312T, instead of --step-time");
  verb->add_option("--mfu", request.mfu, "share of --flops that training reaches")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1.0));
  verb->add_flag("--probe", request.probe, "measure a step and the codec on this machine")->excludes(links);
  verb->add_option("--params", request.params,
                   "number of parameters, for example 200M; overrides the config's model");
  verb->add_option("--vocab", request.vocab, "vocabulary size; overrides the tokenizer's")
      ->check(CLI::Range(2, 1 << 24));
  verb->add_option("--utilization", request.utilization, "wanted share of the time spent computing")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 0.9999));
  verb->add_option("--price", request.price, "price of a GB that a replica sends")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--device-memory", request.device_memory,
                   "memory of one device to check against, for example 24GB");
  verb->add_option("--host-memory", request.host_memory, "memory of a replica's machine, for example 64GB");
  verb->add_option("--disk", request.disk, "disk of a replica's machine, for example 1TB");
  add_json(*verb, request.json);
  verb->add_flag("--paper-table", flags->paper_table,
                 "print the bandwidth table of the Streaming DiLoCo paper next to ours");
  add_set(*verb, flags->set);
  verb->footer("Example: isthmus plan configs/quickstart.yaml --links links.yaml --step-time 500ms");
  commands.on(*verb, [flags] {
    auto& asked = flags->request;
    if (flags->paper_table) return run_paper_table(asked.json);
    if (flags->config.empty() && asked.params.empty())
      throw Error(ErrorKind::config, "plan needs a config file, or --params 200M");
    if (!flags->flops.empty()) asked.flops = flops_of(flags->flops);
    asked.experiment = load_experiment(flags->config, flags->set, std::nullopt, Purpose::benchmark);
    return run_plan(asked);
  });
}

}  // namespace isthmus::app
