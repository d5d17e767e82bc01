#pragma once
// What `outer.auto` plans by while a run goes on, read off its coordinator. Pure: no clock, no threads.

#include <cstdint>
#include <optional>

#include "isthmus/outer_sync/plan/replan.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::app {

/// Of the view's trainers, by name; what a member has not said, or not soundly, is 0. `emulated`: what TCP
/// does not see of network.emulate.
[[nodiscard]] outer_sync::plan::LineReadings replan_readings(
    const outer_sync::protocol::Coordinator& coordinator, const outer_sync::plan::LineReadings& emulated);

/// How the run stands; nothing where there is nothing to plan: before a view, in the warm-up, and when a
/// trainer has made all steps. `outer`: of the config.
[[nodiscard]] std::optional<outer_sync::plan::Standing> replan_standing(
    const outer_sync::protocol::Coordinator& coordinator, const outer_sync::OuterConfig& outer,
    std::uint64_t steps);

}  // namespace isthmus::app
