#pragma once
// Figures of a participant's outer loop: for its metrics, its heartbeats and its final report.

#include <nlohmann/json.hpp>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "participant/hooks.h"
#include "participant/membership.h"
#include "run/metrics/summary.h"

namespace isthmus::app {

/// Figures of checked rounds (outer_sync/engine/step_figures.h), for metrics.jsonl.
class NewFigures {
 public:
  /// The new figures since the last call: an array, or null if there is nothing new.
  [[nodiscard]] nlohmann::ordered_json take(const outer_sync::OuterLoop& outer);

 private:
  std::vector<outer_sync::protocol::Round> taken_;  ///< by fragment
};

/// Means over the fragments, for heartbeats; 0 without figures.
struct OuterMeans {
  double gain = 0, correlation = 0;
};
[[nodiscard]] OuterMeans newest_outer_steps(const outer_sync::OuterLoop& outer);

/// The line of metrics.jsonl.
[[nodiscard]] nlohmann::ordered_json line_of(const StepRecord& record);

/// Final report, with what outer loop and run know.
[[nodiscard]] MemberReport member_report(const outer_sync::OuterLoop& outer,
                                         const outer_sync::NodeStatus& status, const Digest& global_hash);

}  // namespace isthmus::app
