#pragma once
// `outer.auto` at the start of a run: settings of the outer loop that keep it computing for the wanted share
// of the time. The verbs that start a run or print one call `load_and_choose`; reading a config chooses
// nothing.

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct ChosenSettings {
  outer_sync::OuterConfig
      outer;           ///< with sync_every, num_fragments, sync_delay, codec and error_feedback chosen
  std::string reason;  ///< one line: the values, and the predicted share
};

/// A pure function of its arguments, so processes with equal measurements choose alike. `outer`: the settings
/// to change. Throws Error(config) if no settings reach the wanted share.
[[nodiscard]] ChosenSettings choose(const outer_sync::OuterConfig& outer, double utilization,
                                    const PlanInput& measured);

struct LoadedExperiment {
  Experiment experiment;
  std::string chosen;  ///< the reason for the chosen settings; empty if none were chosen
};

/// Loads an experiment as `load_experiment` does. With outer.auto it then chooses settings and sets
/// outer.auto.at_start to false, so that a resumed run keeps them. They depend only on the config without any
/// site's settings, and on its links file; members compare them when they join. Throws Error(config).
[[nodiscard]] LoadedExperiment load_and_choose(config::Source source,
                                               const std::vector<std::string>& assignments,
                                               const std::optional<WorkerPlace>& worker, Purpose purpose);
[[nodiscard]] LoadedExperiment load_and_choose(const std::filesystem::path& file,
                                               const std::vector<std::string>& assignments,
                                               const std::optional<WorkerPlace>& worker = std::nullopt,
                                               Purpose purpose = Purpose::training);

}  // namespace isthmus::app
