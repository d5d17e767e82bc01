#pragma once
// The status of a run: the answer of its coordinator, and the table that is made of it.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// `evaluation`: step and loss of the newest, in nats per token. The object has: run, phase, obstacle (only
/// while rounds do not commit), view, step (of the slowest trainer), steps, replicas, participating,
/// checkpoint (the newest that all have had; 0: none), evaluation, outer_steps (gain, correlation), members
/// (an array of objects: name, site, kind, state, step, loss, utilization, tokens_per_second, bytes_sent,
/// wire_bytes_per_second, uplink_bytes_per_second (null: not known), calendar, allowance (by the calendar, in
/// words), late_results, rounds_lag by fragment, checkpoint, silent_seconds, build, address), relays,
/// slow_paths, settings (changes, paused_after). The coordinator adds `rounds` and `timetable`
/// (round_timeline.h).
[[nodiscard]] nlohmann::ordered_json status_of(
    const outer_sync::protocol::Coordinator& coordinator, const Experiment& experiment,
    const std::optional<std::pair<std::uint64_t, double>>& evaluation);

/// Lines of at most 80 columns. `status` comes from another process and is not trusted: throws Error(data) if
/// it is not a status.
[[nodiscard]] std::string status_table(const nlohmann::json& status);

}  // namespace isthmus::app
