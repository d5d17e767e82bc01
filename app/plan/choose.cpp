#include "plan/choose.h"

#include <fmt/format.h>

#include <utility>

#include "isthmus/base/error.h"
#include "plan/probe.h"

namespace isthmus::app {

namespace {

/// The links and the step time that outer.auto names, for the general config.
PlanInput measurements(const AutoConfig& wanted, Experiment general) {
  if (wanted.step_time.seconds == 0 && wanted.links.empty())
    throw Error(
        ErrorKind::config,
        "outer.auto.step_time is 0; expected the time of an inner step, or a links file with a step_time "
        "for each site");
  PlanRequest request;
  request.experiment = std::move(general);
  request.links = wanted.links;
  if (wanted.step_time.seconds > 0) request.step_time = fmt::format("{}s", wanted.step_time.seconds);
  auto input = plan_input(request);
  // All sites must choose alike, so the speeds must not depend on a site's own device.
  input.setting.speeds = usual_speeds("cpu");
  return input;
}

}  // namespace

ChosenSettings choose(const outer_sync::OuterConfig& outer, double utilization, const PlanInput& measured) {
  const auto found = find_choices(utilization, measured);
  const auto* best = outer_sync::plan::best(found);
  if (best == nullptr) {
    throw Error(ErrorKind::config,
                fmt::format("outer.auto.utilization is {}: none of the settings tried reaches it over {}; "
                            "lower it, or use faster links (`isthmus plan` shows the bottleneck)",
                            utilization, measured.links.source));
  }
  ChosenSettings chosen{outer, {}};
  chosen.outer.sync_every = best->outer.sync_every;
  chosen.outer.num_fragments = best->outer.num_fragments;
  chosen.outer.sync_delay = best->outer.sync_delay;
  chosen.outer.codec = best->outer.codec;
  chosen.outer.error_feedback = best->outer.error_feedback;
  chosen.outer.resolve();
  chosen.reason = fmt::format(
      "outer.auto: sync_every {}, num_fragments {}, sync_delay {}, codec {}: {:.2f} % of the time computing, "
      "with steps of {:.4g} s and {}; outer momentum {:.2g}, the first {:.2g} of the run averages{}",
      outer_sync::plan::last_sync_every(chosen.outer), chosen.outer.num_fragments, chosen.outer.sync_delay,
      chosen.outer.codec, 100 * best->prediction.utilization, measured.step_seconds, measured.links.source,
      chosen.outer.outer_momentum(), chosen.outer.average_first(),
      chosen.outer.optimizer.momentum.number ? "" : fmt::format(" (by its {} steps)", chosen.outer.steps));
  return chosen;
}

LoadedExperiment load_and_choose(config::Source source, const std::vector<std::string>& assignments,
                                 const std::optional<WorkerPlace>& worker, Purpose purpose) {
  LoadedExperiment loaded{load_experiment(source, assignments, worker, purpose), {}};
  auto& experiment = loaded.experiment;
  const auto wanted = experiment.automatic;
  if (wanted.utilization == 0) return loaded;
  if (const auto method = experiment.outer.method; method != outer_sync::Method::streaming_diloco)
    throw Error(ErrorKind::config,
                fmt::format("outer.auto.utilization is set and outer.method is {}; expected "
                            "streaming_diloco, the only method that outer.auto configures",
                            to_string(method)));
  if (!wanted.at_start) return loaded;
  auto general = load_experiment(std::move(source), assignments, std::nullopt, Purpose::benchmark);
  auto chosen = choose(experiment.outer, wanted.utilization, measurements(wanted, std::move(general)));
  experiment.outer = std::move(chosen.outer);
  experiment.automatic.at_start = false;
  loaded.chosen = std::move(chosen.reason);
  return loaded;
}

LoadedExperiment load_and_choose(const std::filesystem::path& file,
                                 const std::vector<std::string>& assignments,
                                 const std::optional<WorkerPlace>& worker, Purpose purpose) {
  return load_and_choose(config::Source::from_file(file), assignments, worker, purpose);
}

}  // namespace isthmus::app
