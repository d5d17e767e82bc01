#pragma once
// Which sync_every, num_fragments, sync_delay and codec keep replicas computing for a wanted part of the
// time.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/predict.h"

namespace isthmus::outer_sync::plan {

/// A model cut into so many fragments.
using MakeCut = std::function<const Cut&(std::int64_t num_fragments)>;

struct Wanted {
  double utilization = 0.99;
  std::vector<std::int64_t> num_fragments;  ///< to try, besides the config's
  std::vector<std::string> codecs;          ///< to try, the best liked first
  /// None below these are tried; the interval itself is, whatever the model's fragments.
  std::int64_t shortest_delay = 1, shortest_interval = 1;
  std::int64_t longest_delay = 10;
  std::int64_t longest_interval = 1000;
  double margin = 0.1;  ///< by which rates may be lower and round trips longer than they are said to be
};

/// What an interval and a delay cost in loss, in steps of interval: a step of delay costs about as much as
/// four of interval (docs/learning.md, "Late results").
[[nodiscard]] constexpr std::int64_t learning_cost(std::int64_t every, std::int64_t delay) {
  return every + 4 * delay;
}

/// The setting with lines that are so much worse than they are said to be.
[[nodiscard]] Setting worse(Setting setting, double margin);

struct Choice {
  OuterConfig outer;
  Prediction prediction;
};

/// For each codec the sync_every and sync_delay that reach the wanted utilisation at the least learning_cost,
/// with an interval of at most 100 if there is one; of equal ones the least delay, then the fewest fragments.
/// Codecs with which it cannot be reached are left out. `base` gives all other settings; its method should be
/// streaming_diloco.
[[nodiscard]] std::vector<Choice> choices(const OuterConfig& base, const MakeCut& cut_into,
                                          const Setting& setting, const Wanted& wanted);

/// Of `choices`, the one to take: the first with a sync_every that is at most 100, else the one of the least
/// learning_cost. Null if `choices` is empty.
[[nodiscard]] const Choice* best(const std::vector<Choice>& choices);

}  // namespace isthmus::outer_sync::plan
