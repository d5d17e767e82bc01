#include <fmt/format.h>

#include <algorithm>

#include "isthmus/base/error.h"
#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/core/pace.h"
#include "isthmus/trainer/parameter_table.h"
#include "plan/model_size.h"
#include "plan/plan.h"
#include "plan/probe.h"

namespace isthmus::app {

namespace {

/// Forward and backward: 6 operations for each parameter and token (Kaplan et al., arXiv 2001.08361).
constexpr double operations = 6;

std::int64_t vocab_of(const PlanRequest& request) {
  if (request.vocab > 0) return request.vocab;
  return data::make_tokenizer(request.experiment.data.tokenizer)->vocab_size();
}

void take_model(const PlanRequest& request, PlanInput& input) {
  if (!request.params.empty()) {
    input.parameters = parameter_count(request.params);
    input.layout = [outer = input.experiment.outer, n = input.parameters](std::int64_t fragments) mutable {
      outer.num_fragments = fragments;
      return even_layout(outer, n);
    };
    return;
  }
  const trainer::ModelShape shape{input.experiment.model, vocab_of(request)};
  const auto chunk = static_cast<std::uint64_t>(input.experiment.outer.chunk_elements);
  input.layers = shape.config.layers;
  input.layout = [shape, chunk](std::int64_t fragments) {
    return trainer::ParameterTable(shape, fragments, chunk).layout();
  };
  input.parameters = input.layout(1).parameters();
}

void take_step_time(const PlanRequest& request, PlanInput& input) {
  const auto slowest = [](const LinkSite& site) { return site.step_time.seconds; };
  const auto& experiment = input.experiment;
  const auto tokens = static_cast<double>(experiment.inner.batch * experiment.data.seq_len);
  if (!request.step_time.empty()) {
    input.step_seconds = step_duration(request.step_time).seconds;
    input.step_source = "as given";
  } else if (request.flops > 0) {
    input.step_seconds =
        operations * static_cast<double>(input.parameters) * tokens / (request.flops * request.mfu);
    input.step_source =
        fmt::format("6 x parameters x {:.0f} tokens at {:.3g} FLOP/s and {:.0f} % utilization", tokens,
                    request.flops, 100 * request.mfu);
  } else if (request.probe && request.measure_step && request.params.empty()) {
    input.step_seconds = request.measure_step(experiment, vocab_of(request));
    input.step_source = "measured on this machine";
  } else if (std::ranges::all_of(input.links.sites,
                                 [](const auto& site) { return site.step_time.seconds > 0; })) {
    input.step_seconds = std::ranges::max(input.links.sites, {}, slowest).step_time.seconds;
    input.step_source = "the slowest site's";
  } else {
    throw Error(
        ErrorKind::config,
        request.probe && !request.measure_step
            ? "--probe: this binary has no trainer to measure a step with; give --step-time 500ms or --flops "
              "312T"
            : "the time of a step is unknown; expected --step-time 500ms, --flops 312T (with --mfu), "
              "step_time of every site in the links file, or --probe");
  }
}

/// inner.batch of each replica, with its site's settings.
std::vector<double> batches(const Experiment& experiment, std::size_t replicas) {
  std::vector<double> out;
  for (const auto& site : experiment.sites) {
    const auto* own = site.find("inner.batch");
    const auto batch =
        own != nullptr ? std::stod(own->values.front()) : static_cast<double>(experiment.inner.batch);
    out.insert(out.end(), static_cast<std::size_t>(site.replicas), batch);
  }
  out.resize(replicas, static_cast<double>(experiment.inner.batch));
  return out;
}

/// With outer.pace: time, a replica makes as many inner steps as fit into the median replica's step.
void take_pace(PlanInput& input) {
  using outer_sync::Pace;
  auto& replicas = input.setting.network.replicas;
  const auto batch = batches(input.experiment, replicas.size());
  for (const auto& replica : replicas) input.own_step_seconds.push_back(replica.step_seconds);
  auto sorted = input.own_step_seconds;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::ranges::nth_element(sorted, middle);
  for (std::size_t m = 0; m < replicas.size(); ++m) {
    double inner = 1;
    if (input.experiment.outer.paced_by_time()) {
      inner = std::clamp(*middle / replicas[m].step_seconds, Pace::slowest, Pace::fastest);
      replicas[m].step_seconds *= inner;
    }
    input.tokens_per_step.push_back(inner * batch[m] * static_cast<double>(input.experiment.data.seq_len));
  }
}

}  // namespace

const outer_sync::plan::Cut& PlanInput::cut(std::int64_t num_fragments) const {
  const auto known = cuts->find(num_fragments);
  if (known != cuts->end()) return known->second;
  auto made = outer_sync::plan::cut(experiment.outer, layout(num_fragments), setting);
  return cuts->emplace(num_fragments, std::move(made)).first->second;
}

PlanInput plan_input(const PlanRequest& request) {
  PlanInput input;
  input.experiment = request.experiment;
  if (input.experiment.reducers > 0)
    throw Error(ErrorKind::config, fmt::format("reducers is {}; expected 0: plan supports replicas only",
                                               input.experiment.reducers));
  input.links = request.links.empty() ? links_of(input.experiment) : read_links(request.links);
  if (const auto replicas = input.links.replicas(); replicas != input.experiment.replicas) {
    if (!input.experiment.sites.empty())
      throw Error(ErrorKind::config,
                  fmt::format("{} has {} replicas and the config's sites have {}; expected equal numbers",
                              input.links.source, replicas, input.experiment.replicas));
    input.experiment.replicas = replicas;
    input.experiment.outer.take_replicas(replicas);
  }
  take_model(request, input);
  take_step_time(request, input);
  input.setting.speeds = request.probe ? measure_speeds(input.experiment.outer.codec_spec())
                                       : usual_speeds(input.experiment.device.device);
  input.setting.uplinks_known = input.links.uplinks_known;
  input.setting.network = network_of(input.links, input.experiment.network.lanes, input.step_seconds);
  take_pace(input);
  return input;
}

}  // namespace isthmus::app
