#include "plan/auto.h"

#include <fmt/format.h>

#include <utility>

#include "isthmus/base/error.h"
#include "plan/plan.h"
#include "plan/probe.h"

namespace isthmus::app {

void check_automatic(const Experiment& experiment) {
  const auto& method = experiment.outer.method;
  if (method == "streaming_diloco") return;
  throw Error(ErrorKind::config,
              "outer.auto.utilization is set and outer.method is " + method +
                  "; expected streaming_diloco, the only method that outer.auto configures");
}

void choose_settings(Experiment& experiment, Experiment general) {
  auto& outer = experiment.outer;
  const auto wanted = experiment.automatic;
  experiment.automatic.at_start = false;
  if (wanted.step_time.seconds == 0 && wanted.links.empty())
    throw Error(
        ErrorKind::config,
        "outer.auto.step_time is 0; expected the time of an inner step, or a links file with a step_time "
        "for each site");
  PlanRequest request;
  request.experiment = std::move(general);
  request.utilization = wanted.utilization;
  request.links = wanted.links;
  if (wanted.step_time.seconds > 0) request.step_time = fmt::format("{}s", wanted.step_time.seconds);
  auto input = plan_input(request);
  // All sites must choose alike, so the speeds must not depend on a site's own device.
  input.setting.speeds = usual_speeds("cpu");
  const auto found = find_choices(request, input);
  const auto* best = outer_sync::plan::best(found);
  if (best == nullptr) {
    throw Error(ErrorKind::config,
                fmt::format("outer.auto.utilization is {}: none of the settings tried reaches it over {}; "
                            "lower it, or use faster links (`isthmus plan` shows the bottleneck)",
                            wanted.utilization, input.links.source));
  }
  outer.sync_every = best->outer.sync_every;
  outer.num_fragments = best->outer.num_fragments;
  outer.sync_delay = best->outer.sync_delay;
  outer.codec = best->outer.codec;
  outer.error_feedback = best->outer.error_feedback;
  outer.resolve();
  experiment.auto_note = fmt::format(
      "outer.auto: sync_every {}, num_fragments {}, sync_delay {}, codec {}: {:.2f} % of the time computing, "
      "with steps of {:.4g} s and {}",
      outer_sync::plan::last_sync_every(outer), outer.num_fragments, outer.sync_delay, outer.codec,
      100 * best->prediction.utilization, input.step_seconds, input.links.source);
}

}  // namespace isthmus::app
