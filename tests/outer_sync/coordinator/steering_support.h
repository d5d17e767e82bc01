#pragma once
// Commands of an operator to a CoordinatorHarness, and the options of a run that they may change.

#include <string>
#include <utility>
#include <vector>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {

inline constexpr ConnectionId operator_connection = 50;

inline Command operator_command(const std::string& verb, std::vector<std::string> arguments = {}) {
  return {.run = "run-1", .by = "operator", .verb = verb, .arguments = std::move(arguments), .member = {}};
}

/// Options of a run of 1000 steps in which operators may set everything but model.dim.
inline CoordinatorOptions steerable_options(std::size_t replicas) {
  auto options = CoordinatorHarness::default_options(replicas);
  options.steps = 1000;
  options.judge = [](const Settings&, const ConfigItems& items) {
    const auto& key = items.front().first;
    return ChangeVerdict{key == "model.dim" ? "model.dim cannot be set in mid-run" : "",
                         key == "network.rate"};
  };
  return options;
}

}  // namespace isthmus::outer_sync::protocol
