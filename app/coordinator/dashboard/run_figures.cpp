#include "coordinator/dashboard/run_figures.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "isthmus/base/time.h"
#include "run/experiment/live_settings.h"

namespace isthmus::app {

using Json = nlohmann::ordered_json;
using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Path;
using outer_sync::protocol::Route;

NextCheckpoint next_checkpoint_of(const Coordinator& coordinator, const Experiment& experiment,
                                  std::uint64_t step) {
  const auto run = run_config_at(experiment.run, coordinator.settings(), step + 1);
  NextCheckpoint out{.ordered = coordinator.ordered_checkpoint(),
                     .every = static_cast<std::uint64_t>(run.checkpoint_every)};
  if (const auto in = coordinator.next_checkpoint_in()) out.seconds = std::max(0.0, seconds(*in));
  return out;
}

Json to_json(const NextCheckpoint& next, std::uint64_t step, std::uint64_t steps) {
  auto at = steps;  // every run ends with a checkpoint
  if (next.every > 0) at = std::min(at, (step / next.every + 1) * next.every);
  if (next.ordered > step) at = std::min(at, next.ordered);
  return {{"step", at > step ? Json(at) : Json(nullptr)},
          {"seconds", next.seconds && next.ordered <= step ? Json(*next.seconds) : Json(nullptr)}};
}

Json links_json(std::vector<Path> paths, const std::vector<Route>& slow, std::size_t most) {
  const auto is_slow = [&](const Path& path) {
    return std::ranges::any_of(slow, [&](const Route& route) {
      return (route.from.empty() || route.from == path.from) && (route.to.empty() || route.to == path.to);
    });
  };
  std::stable_partition(paths.begin(), paths.end(), is_slow);
  if (paths.size() > most) paths.resize(most);
  using Milliseconds = std::chrono::duration<double, std::milli>;
  auto out = Json::array();
  for (const auto& path : paths)
    out.push_back(
        {{"from", path.from},
         {"to", path.to},
         {"round_trip_ms", Milliseconds(path.round_trip).count()},
         {"shortest_round_trip_ms", Milliseconds(path.shortest).count()},
         {"bytes_per_second", path.bytes_per_second > 0 ? Json(path.bytes_per_second) : Json(nullptr)},
         {"slow", is_slow(path)}});
  return out;
}

std::optional<double> training_loss(const Coordinator& coordinator) {
  double sum = 0;
  std::size_t count = 0;
  for (const auto& [name, member] : coordinator.members()) {
    const auto& beat = member.heartbeat;
    const bool counts = outer_sync::protocol::trains(member.hello.member) &&
                        member.role == Coordinator::Role::member && beat.step > 0 && std::isfinite(beat.loss);
    if (!counts) continue;
    sum += beat.loss;
    ++count;
  }
  return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

}  // namespace isthmus::app
