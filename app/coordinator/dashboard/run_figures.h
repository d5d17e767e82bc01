#pragma once
// Figures of a run that the dashboard shows in addition to the status (run_status.h), as JSON. Pure.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

/// When the next checkpoint of all trainers comes, as far as it is known.
struct NextCheckpoint {
  std::uint64_t ordered = 0;        ///< step of an order that is not complete; 0: none
  std::uint64_t every = 0;          ///< run.checkpoint_every in force; 0: none
  std::optional<double> seconds{};  ///< until run.checkpoint_interval brings an order
};
[[nodiscard]] NextCheckpoint next_checkpoint_of(const outer_sync::protocol::Coordinator& coordinator,
                                                const Experiment& experiment, std::uint64_t step);
/// An object: step (of the next checkpoint that has a step; the run's last one has one) and seconds; null if
/// unknown.
[[nodiscard]] nlohmann::ordered_json to_json(const NextCheckpoint& next, std::uint64_t step,
                                             std::uint64_t steps);

/// An array of at most `most` objects: from, to, round_trip_ms, shortest_round_trip_ms, bytes_per_second
/// (null: not known), slow. Slow paths come first.
[[nodiscard]] nlohmann::ordered_json links_json(std::vector<outer_sync::protocol::Path> paths,
                                                const std::vector<outer_sync::protocol::Route>& slow,
                                                std::size_t most);

/// Mean over the view's trainers that have made a step; nullopt if none has.
[[nodiscard]] std::optional<double> training_loss(const outer_sync::protocol::Coordinator& coordinator);

}  // namespace isthmus::app
