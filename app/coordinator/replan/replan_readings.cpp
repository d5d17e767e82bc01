#include "coordinator/replan/replan_readings.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>

#include "isthmus/outer_sync/config/settings_timeline.h"

namespace isthmus::app {

using outer_sync::plan::LineReadings;
using outer_sync::plan::Standing;
using outer_sync::protocol::Coordinator;
using outer_sync::protocol::RunPhase;

namespace {

/// In seconds. A round trip that is longer by up to this much includes the queue that the rate controller
/// keeps (rate_follower.h).
constexpr double usual_queue = 0.03;

bool counts(const Coordinator::MemberStatus& member) {
  return outer_sync::protocol::trains(member.hello.member) && member.role == Coordinator::Role::member;
}

}  // namespace

LineReadings replan_readings(const Coordinator& coordinator, const LineReadings& emulated_lines) {
  using Seconds = std::chrono::duration<double>;
  LineReadings out;
  std::map<std::string, std::size_t> places;
  for (const auto& [name, member] : coordinator.members()) {
    if (!counts(member)) continue;
    const double seconds = 1 / member.heartbeat.inner_steps_per_second;
    places.emplace(name, out.members.size());
    out.members.push_back(
        {name, std::isfinite(seconds) && seconds > 0 ? seconds : 0, static_cast<double>(member.uplink)});
  }
  const auto count = out.members.size();
  out.ways.resize(count * count);
  for (const auto& path : coordinator.paths().all()) {
    const auto from = places.find(path.from), to = places.find(path.to);
    if (from == places.end() || to == places.end()) continue;
    auto& way = out.ways[from->second * count + to->second];
    const double now = Seconds(path.round_trip).count(), shortest = Seconds(path.shortest).count();
    way.round_trip = now <= shortest + usual_queue ? shortest : now;
    way.rate = static_cast<double>(path.bytes_per_second);
  }
  for (std::size_t i = 0; i < count; ++i) {  // all paths of a member share its link
    double sum = 0;
    bool all = count > 1;
    for (std::size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      all = all && out.ways[i * count + j].rate > 0;
      sum += out.ways[i * count + j].rate;
    }
    if (all) out.members[i].up = sum;
  }
  const auto emulated = emulated_lines.members.size();
  for (std::size_t i = 0; i < emulated; ++i) {
    for (std::size_t j = 0; j < emulated; ++j) {
      const auto from = places.find(emulated_lines.members[i].name),
                 to = places.find(emulated_lines.members[j].name);
      if (i == j || from == places.end() || to == places.end()) continue;
      auto& way = out.ways[from->second * count + to->second];
      if (way.round_trip > 0) way.round_trip += emulated_lines.ways[i * emulated + j].round_trip;
    }
  }
  return out;
}

CalendarLimits calendar_limits(const Coordinator& coordinator, outer_sync::WallTime now,
                               std::chrono::seconds ahead) {
  CalendarLimits limits;
  for (const auto& [name, member] : coordinator.members()) {
    if (!counts(member) || member.calendar.empty()) continue;
    for (std::optional time = now; time && *time <= now + ahead; time = member.calendar.next_change(*time)) {
      const auto allowance = member.calendar.at(*time);
      if (!allowance || allowance->closed || allowance->bytes_per_second == 0) continue;
      const auto rate = static_cast<double>(allowance->bytes_per_second);
      const auto [limit, is_first] = limits.try_emplace(name, rate);
      limit->second = std::min(limit->second, rate);
    }
  }
  return limits;
}

void apply_limits(const CalendarLimits& limits, LineReadings& lines) {
  for (auto& member : lines.members) {
    const auto limit = limits.find(member.name);
    if (limit == limits.end()) continue;
    member.up = member.up > 0 ? std::min(member.up, limit->second) : limit->second;
  }
}

std::optional<Standing> replan_standing(const Coordinator& coordinator, const outer_sync::OuterConfig& outer,
                                        std::uint64_t steps) {
  if (coordinator.run_phase() != RunPhase::running || !coordinator.layout()) return std::nullopt;
  auto slowest = ~std::uint64_t{0};
  bool uplinks_known = true;
  for (const auto& [name, member] : coordinator.members()) {
    if (!counts(member)) continue;
    slowest = std::min(slowest, member.heartbeat.step);
    uplinks_known = uplinks_known && member.uplink > 0;
  }
  if (slowest <= static_cast<std::uint64_t>(outer.warmup_steps) || slowest >= steps) return std::nullopt;
  return Standing{.outer = outer_sync::SettingsTimeline(outer, coordinator.settings()).newest(),
                  .layout = *coordinator.layout(),
                  .steps_left = steps - slowest,
                  .uplinks_known = uplinks_known};
}

}  // namespace isthmus::app
