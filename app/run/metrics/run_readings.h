#pragma once
// Figures of a run's processes as readings for Prometheus.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/metrics/metric_table.h"
#include "run/metrics/summary.h"

namespace isthmus::app {

/// Figures of a coordinator that its state machine does not keep.
struct RunFigures {
  std::uint64_t steps = 0;  ///< in the whole run
  std::uint64_t view_changes = 0;
  const std::map<std::uint64_t, double>* evaluations = nullptr;      ///< step -> loss
  const std::map<std::string, GradientReport>* gradients = nullptr;  ///< by replica
};

/// Figures of a replica that neither its outer loop nor its node keeps, since the start of the process.
struct ReplicaFigures {
  std::uint64_t steps = 0, tokens = 0, loss_spikes = 0;
  Durations step_durations;
  double loss = 0, learning_rate = 0, gradient_norm = 0, tokens_per_second = 0;  ///< of the last step
  double utilization = 0;
  double data_wait_seconds = 0, all_reduce_seconds = 0, rank_average_seconds = 0;
  std::uint64_t all_reduce_bytes = 0;  ///< sent, in addition to the node's
  std::optional<double> drift;         ///< at the last evaluation
};

/// Leaves out the paths in runs with many members: there is one for each pair.
[[nodiscard]] Readings readings_of(const outer_sync::protocol::Coordinator& coordinator,
                                   const RunFigures& figures);
[[nodiscard]] Readings readings_of(const outer_sync::OuterLoop& outer, const outer_sync::MemberNode& node,
                                   const ReplicaFigures& figures);
/// Readings that any worker has. Thread-safe.
[[nodiscard]] Readings readings_of(const outer_sync::NodeStatus& now);

}  // namespace isthmus::app
