#pragma once
// Shared by all processes that train (`isthmus worker` and the Python binding): the folder, the log, the
// check before each step, the records and the final report.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/experiment/experiment.h"
#include "run/metrics/summary.h"

namespace isthmus::app {

/// Folder of checkpoints in a replica's folder.
[[nodiscard]] std::filesystem::path checkpoints_in(const std::filesystem::path& replica_folder);

/// The replica's own folder. If it has checkpoints and the run is not resumed, it is moved away as that of an
/// earlier run. The log stays in place for all runs: `launch` has opened it by that name.
[[nodiscard]] std::filesystem::path replica_folder(const Experiment& experiment, const std::string& name,
                                                   bool resume);

/// The first free trace file: a resumed run keeps the traces of earlier runs.
[[nodiscard]] std::filesystem::path trace_file(const std::filesystem::path& replica_folder);

/// Plan for `outer.log`, which must not be empty. `model`: fingerprint.
[[nodiscard]] outer_sync::OuterLoop::LogPlan log_plan(const Experiment& experiment, const std::string& name,
                                                      std::span<const outer_sync::log::LoggedTensor> tensors,
                                                      const outer_sync::FragmentLayout& layout,
                                                      const Digest& model);

/// The next action of a trainer.
enum class Turn {
  step,    ///< an inner step
  paused,  ///< nothing yet; ask again (a moment has passed)
  over     ///< nothing more: the members have agreed to stop here
};
/// Call it before each inner step, until the agreed step is `last`. The agreed step does not pass a pause or
/// a stop, however many agreed steps an inner step completes. Throws as MemberNode::may_begin does.
[[nodiscard]] Turn next_turn(outer_sync::OuterLoop& outer, outer_sync::MemberNode& node, std::uint64_t last);

/// Figures of audited rounds (outer_sync/engine/step_figures.h), for metrics.jsonl.
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

/// One inner step, for metrics.jsonl. Unknown values are left out.
struct StepRecord {
  std::uint64_t step = 0;  ///< agreed
  std::optional<std::uint64_t> data_step;
  std::uint64_t inner_steps = 0;
  bool committing = true;
  std::optional<double> loss, lr, grad_norm;
  std::optional<std::uint64_t> loss_spikes;
  double step_seconds = 0, tokens_per_second = 0;
  double utilization = 0;  ///< 0..1
  outer_sync::OuterLoop::Stats stats;
  outer_sync::Participation who;
  std::uint64_t bytes_sent = 0;
  nlohmann::ordered_json outer_steps;  ///< from NewFigures
};
/// Record of the last step, with what outer loop and node know.
[[nodiscard]] StepRecord record_of(const outer_sync::OuterLoop& outer, const outer_sync::MemberNode& node);
[[nodiscard]] nlohmann::ordered_json line_of(const StepRecord& record);

/// Final report, with what outer loop and node know.
[[nodiscard]] MemberReport member_report(const outer_sync::OuterLoop& outer,
                                         const outer_sync::MemberNode& node, const Digest& global_hash);

}  // namespace isthmus::app
