#pragma once
// `isthmus plan` for a run with calendars (network.calendar): the parts of the week in which all sites'
// calendars say the same, and what the run does in each. Called by plan_json and run_plan.

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/calendar.h"
#include "plan/plan.h"

namespace isthmus::app {

struct CalendarWindow {
  std::vector<std::optional<outer_sync::Allowance>> sites;
  outer_sync::WallTime begins;      ///< first time in a week that begins on Monday, UTC
  std::chrono::seconds in_week{0};  ///< total length
};
/// The window with the fewest limits comes first, then by `begins`. One calendar for each site.
[[nodiscard]] std::vector<CalendarWindow> calendar_windows(const std::vector<outer_sync::Calendar>& sites);

/// Null if no site has a calendar. Otherwise an array of objects: hours_per_week, begins, links (site and
/// allowance, where a calendar has an entry), participating, utilization (null: rounds wait), and by_auto:
/// sync_every and sync_delay that outer.auto would set, with their utilization (null: none, or no change).
[[nodiscard]] nlohmann::ordered_json calendar_json(const PlanRequest& request, const PlanInput& input);
/// At most 80 columns; empty if the argument is null.
[[nodiscard]] std::string calendar_text(const nlohmann::ordered_json& windows);

}  // namespace isthmus::app
