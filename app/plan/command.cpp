#include "plan/command.h"

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

struct Options {
  PlanRequest request;
  std::string config, flops;
  bool paper_table = false;
};

}  // namespace

void add_plan(CommandLine& commands, MeasureStep measure) {
  auto* verb = commands.app().add_subcommand(
      "plan", "what a run would do with its links, memory and disks; which settings keep it computing");
  const auto options = std::make_shared<Options>();
  auto& request = options->request;
  request.measure_step = std::move(measure);
  verb->add_option("config", options->config, "experiment in YAML; none: the defaults, with --params");
  auto* links = verb->add_option(
      "--links", request.links,
      "sites and their lines in YAML, what `doctor --json` has measured (.json), or the folder of a run");
  verb->add_option("--step-time", request.step_time, "of an inner step: 500ms");
  verb->add_option("--flops", options->flops, "of a replica's devices, in place of --step-time: 312T");
  verb->add_option("--mfu", request.mfu, "the part of them that training reaches")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1.0));
  verb->add_flag("--probe", request.probe, "measure a step and the codec on this machine")->excludes(links);
  verb->add_option("--params", request.params, "in place of the config's model: 200M");
  verb->add_option("--vocab", request.vocab, "in place of the tokenizer's")->check(CLI::Range(2, 1 << 24));
  verb->add_option("--utilization", request.utilization, "part of the time that is to be computed")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 0.9999));
  verb->add_option("--price", request.price, "of a GB that leaves a replica")->check(CLI::Range(0.0, 1e6));
  verb->add_option("--device-memory", request.device_memory, "of one device, to compare with: 24GB");
  verb->add_option("--host-memory", request.host_memory, "of a replica's machine: 64GB");
  verb->add_option("--disk", request.disk, "of a replica's machine: 1TB");
  commands.add_json(*verb);
  verb->add_flag("--paper-table", options->paper_table,
                 "the bandwidth table of the Streaming DiLoCo paper beside ours");
  commands.add_set(*verb);
  verb->footer("Example: isthmus plan configs/quickstart.yaml --links links.yaml --step-time 500ms");
  commands.on(*verb, [&commands, options] {
    auto& asked = options->request;
    asked.json = commands.flags().json;
    if (options->paper_table) return run_paper_table(asked.json);
    if (options->config.empty() && asked.params.empty())
      throw Error(ErrorKind::config, "plan needs a config file, or --params 200M");
    if (!options->flops.empty()) asked.flops = flops_of(options->flops);
    asked.experiment =
        load_experiment(options->config, commands.flags().set, std::nullopt, Purpose::benchmark);
    return run_plan(asked);
  });
}

}  // namespace isthmus::app
