#pragma once
// The coordinator's readings for `outer.auto` during a run. Pure: no clock, no threads.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/plan/replan.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::app {

/// Readings of the view's trainers, by name; 0 for a value that a member did not report, or that is not
/// valid. `emulated`: the part of network.emulate that TCP does not see.
[[nodiscard]] outer_sync::plan::LineReadings replan_readings(
    const outer_sync::protocol::Coordinator& coordinator, const outer_sync::plan::LineReadings& emulated);

/// Bytes per second that each trainer of the view may send by its calendar, by name: the lowest rate from now
/// until `ahead` later. Trainers without a limit are left out.
using CalendarLimits = std::map<std::string, double>;
[[nodiscard]] CalendarLimits calendar_limits(const outer_sync::protocol::Coordinator& coordinator,
                                             outer_sync::WallTime now, std::chrono::seconds ahead);
/// Lowers the upload rates to the limits.
void apply_limits(const CalendarLimits& limits, outer_sync::plan::LineReadings& lines);

/// The state of the run; nullopt if there is nothing to plan: before a view, in the warm-up, and when all
/// trainers have made all steps. `outer`: from the config.
[[nodiscard]] std::optional<outer_sync::plan::Standing> replan_standing(
    const outer_sync::protocol::Coordinator& coordinator, const outer_sync::OuterConfig& outer,
    std::uint64_t steps);

}  // namespace isthmus::app
