#pragma once
// What every process that trains does for its run, whatever it trains and with what: its folder, its log, the
// question before each step, its records and its report. `isthmus worker` and the Python binding share it.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "run/experiment.h"
#include "run/summary.h"

namespace isthmus::app {

/// Where checkpoints lie in a replica's folder.
[[nodiscard]] std::filesystem::path checkpoints_in(const std::filesystem::path& replica_folder);

/// The replica's own folder. One that holds checkpoints is of another run or life, unless that is resumed: it
/// is moved away. The log of all lives stays where it is: `launch` has opened it by that name.
[[nodiscard]] std::filesystem::path replica_folder(const Experiment& experiment, const std::string& name,
                                                   bool resume);

/// The first that is free: a resumed run keeps the trace of the runs before it.
[[nodiscard]] std::filesystem::path trace_file(const std::filesystem::path& replica_folder);

/// Of `outer.log`, which must not be empty. `model`: fingerprint.
[[nodiscard]] outer_sync::OuterLoop::LogPlan log_plan(const Experiment& experiment, const std::string& name,
                                                      std::span<const outer_sync::log::LoggedTensor> tensors,
                                                      const outer_sync::FragmentLayout& layout,
                                                      const Digest& model);

/// What comes next.
enum class Turn {
  step,    ///< an inner step
  paused,  ///< nothing yet; a moment has passed
  over     ///< nothing more: the members have agreed to stop here
};
/// To be asked before each inner step, until the clock is at `last`. The clock goes no further than a pause
/// or a stop, however many agreed steps the inner one completes. Throws as MemberNode::may_begin does.
[[nodiscard]] Turn next_turn(outer_sync::OuterLoop& outer, outer_sync::MemberNode& node, std::uint64_t last);

/// Figures of audited rounds (outer_sync/engine/step_figures.h), for metrics.jsonl.
class NewFigures {
 public:
  /// Those that are new since the last call: an array, null where there are none.
  [[nodiscard]] nlohmann::ordered_json take(const outer_sync::OuterLoop& outer);

 private:
  std::vector<outer_sync::protocol::Round> taken_;  ///< by fragment
};

/// Over the fragments, for heartbeats; 0 where there are none.
struct OuterMeans {
  double gain = 0, correlation = 0;
};
[[nodiscard]] OuterMeans newest_outer_steps(const outer_sync::OuterLoop& outer);

/// One inner step, for metrics.jsonl. What is not known is left out.
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
  nlohmann::ordered_json outer_steps;  ///< of NewFigures
};
/// What outer loop and node know of the step that was just made.
[[nodiscard]] StepRecord record_of(const outer_sync::OuterLoop& outer, const outer_sync::MemberNode& node);
[[nodiscard]] nlohmann::ordered_json line_of(const StepRecord& record);

/// What outer loop and node know of the whole, at the end.
[[nodiscard]] MemberReport member_report(const outer_sync::OuterLoop& outer,
                                         const outer_sync::MemberNode& node, const Digest& global_hash);

}  // namespace isthmus::app
