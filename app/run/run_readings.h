#pragma once
// What a run's processes have to say, as readings for Prometheus.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/metric_table.h"
#include "run/summary.h"

namespace isthmus::app {

/// Of a coordinator: what its state machine does not keep.
struct RunFigures {
  std::uint64_t steps = 0;  ///< that the run is to make
  std::uint64_t view_changes = 0;
  const std::map<std::uint64_t, double>* evaluations = nullptr;      ///< step -> loss
  const std::map<std::string, GradientReport>* gradients = nullptr;  ///< by replica
};

/// Of a replica: what neither its outer loop nor its node keeps. Since the start of the process.
struct ReplicaFigures {
  std::uint64_t steps = 0, tokens = 0, loss_spikes = 0;
  Durations step_durations;
  double loss = 0, learning_rate = 0, gradient_norm = 0, tokens_per_second = 0;  ///< of the last step
  double utilization = 0;
  double data_wait_seconds = 0, all_reduce_seconds = 0;
  std::uint64_t all_reduce_bytes = 0;  ///< sent, beside the node's
  std::optional<double> drift;         ///< at the last evaluation
};

/// Of runs with many members the paths are left out: there is one between any two.
[[nodiscard]] Readings readings_of(const outer_sync::protocol::Coordinator& coordinator,
                                   const RunFigures& figures);
[[nodiscard]] Readings readings_of(const outer_sync::OuterLoop& outer, const outer_sync::MemberNode& node,
                                   const ReplicaFigures& figures);
/// What any worker has to say. Safe from any thread.
[[nodiscard]] Readings readings_of(const outer_sync::MemberNode& node);

}  // namespace isthmus::app
