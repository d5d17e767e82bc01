#pragma once
// Chooses sync_every, num_fragments, sync_delay and codec so that replicas compute for a given share of the
// time.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/predict.h"

namespace isthmus::outer_sync::plan {

/// Returns the model cut into this number of fragments.
using MakeCut = std::function<const Cut&(std::int64_t num_fragments)>;

struct Wanted {
  double utilization = 0.99;
  std::vector<std::int64_t> num_fragments;  ///< to try, in addition to the config's
  std::vector<std::string> codecs;          ///< to try, in order of preference
  /// Lower bounds of the values tried. `shortest_interval` itself is tried even if there are more fragments.
  std::int64_t shortest_delay = 1, shortest_interval = 1;
  std::int64_t longest_delay = 10;
  std::int64_t longest_interval = 1000;
  double margin = 0.1;  ///< share by which rates may be lower and round trips longer than given
};

/// Cost of an interval and a delay in loss, in steps of interval: a step of delay costs about as much as four
/// steps of interval (docs/learning.md, "Late results").
[[nodiscard]] constexpr std::int64_t learning_cost(std::int64_t every, std::int64_t delay) {
  return every + 4 * delay;
}

/// The setting with links worse by `margin`.
[[nodiscard]] Setting worse(Setting setting, double margin);

struct Choice {
  OuterConfig outer;
  Prediction prediction;
};

/// For each codec, the sync_every and sync_delay that reach the wanted utilisation at the lowest
/// learning_cost, with an interval of at most 100 if possible; among equals the smallest delay, then the
/// fewest fragments. Codecs that cannot reach it are left out. `base` gives all other settings; its method
/// should be streaming_diloco.
[[nodiscard]] std::vector<Choice> choices(const OuterConfig& base, const MakeCut& cut_into,
                                          const Setting& setting, const Wanted& wanted);

/// The recommended one of `choices`: the first with a sync_every of at most 100, otherwise the one with the
/// lowest learning_cost. Null if `choices` is empty.
[[nodiscard]] const Choice* best(const std::vector<Choice>& choices);

}  // namespace isthmus::outer_sync::plan
