#pragma once
// Settings that change during a run, by `ctl set` or outer.auto.

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Whether these values may be set during the run, on top of earlier changes.
[[nodiscard]] outer_sync::protocol::ChangeVerdict judge_change(const Experiment& experiment,
                                                               const outer_sync::protocol::Settings& before,
                                                               const config::SharedItems& items);

/// The run's keys at that step, including changes made during the run. Throws Error(config) for invalid
/// values.
[[nodiscard]] RunConfig run_config_at(const RunConfig& base, const outer_sync::protocol::Settings& settings,
                                      std::uint64_t step);

}  // namespace isthmus::app
