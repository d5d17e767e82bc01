#pragma once
// Links of simulated runs over time, and the noisy readings that a coordinator would have of them. A pure
// function of the seed.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/plan/replan.h"

namespace isthmus::outer_sync::plan {

struct LinkHistory {
  std::string kind;
  std::uint64_t seed = 0;
  OuterConfig outer;  ///< resolved; the settings that the run begins with
  FragmentLayout layout;
  double utilization = 0.99;         ///< the wanted utilisation
  std::vector<LineReadings> states;  ///< true values of the links
  std::vector<std::size_t> at;       ///< the state in each second
  std::vector<LineReadings> read;    ///< what the coordinator reads in each second
  double noise = 0.1;                ///< of a rate's reading, as a standard deviation of the logarithm
  double outliers = 0;               ///< share of readings that are far too low
};

/// `each` histories of each kind, of `seconds` each. `kinds`: empty means all. A rate is measured when a
/// fragment is sent, and its reading follows slowly, as the rate follower does: downwards by a seventh of the
/// difference of the logarithms, upwards by at most a fifth. Round trips and steps are measured each second.
[[nodiscard]] std::vector<LinkHistory> link_histories(std::uint64_t seed, std::size_t each, int seconds,
                                                      const std::vector<std::string>& kinds);
[[nodiscard]] const std::vector<std::string>& link_history_kinds();

}  // namespace isthmus::outer_sync::plan
