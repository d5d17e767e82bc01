#pragma once
// The record of a run, from its own files or from a CSV file made elsewhere: a loss curve against tokens,
// time and bytes, and the figures of the whole run.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compare/arms/comparison.h"
#include "compare/runs/run_state.h"

namespace isthmus::app {

/// One evaluation of the global parameters.
struct CurvePoint {
  double tokens = 0;              ///< trained on so far, over all replicas
  std::optional<double> seconds;  ///< of training, without evaluations and checkpoints
  std::optional<double> bytes;    ///< sent by a replica, with headers and control; mean over replicas
  double loss = 0;                ///< nats per token of held-out text
};

struct RunRecord {
  std::optional<std::int64_t> seed;  ///< nullopt for a curve made elsewhere
  std::filesystem::path source;      ///< the run's folder, or the CSV file
  EarlyEnd ended;
  std::vector<CurvePoint> curve;  ///< tokens ascending
  /// The members below are set only for our own runs.
  std::uint64_t steps = 0, parameters = 0, replicas = 0;
  std::optional<double> bits;         ///< payload that a replica sent, per parameter and step
  std::optional<double> utilization;  ///< 0..1: share of inner steps in the training time, mean over replicas
  std::optional<double> stall_seconds;  ///< waiting for late results; the longest of all replicas
  std::string commit;                   ///< that trained it; empty if not in the summary
  std::string global_hash;              ///< of the final parameters, equal on all replicas; likewise

  /// Means over the outer steps (outer_sync/engine/step_figures.h).
  std::optional<double> outer_gain, outer_correlation;

  [[nodiscard]] double tokens() const { return curve.empty() ? 0 : curve.back().tokens; }
  /// Whether its final loss can be compared: it has used all of its tokens, or all of its time.
  [[nodiscard]] bool is_whole() const { return ended.how.empty() || ended.how == "time"; }
  /// How one of our own runs ended early: "seed 2 diverged at step 90".
  [[nodiscard]] std::string ended_line() const;
};

/// Final losses of whole runs, paired by seed.
struct SeedPairs {
  std::vector<std::int64_t> seeds;
  std::vector<double> arm, against;  ///< in the order of `seeds`
};
[[nodiscard]] SeedPairs pair_by_seed(const std::vector<RunRecord>& arm,
                                     const std::vector<RunRecord>& against);

/// Reads a run's folder: metrics.jsonl of the run and of its workers, and summary.json if the run has ended.
/// Leaves out damaged lines. Throws Error(data) if there is no evaluation.
[[nodiscard]] RunRecord read_run(const RunPlan& run);

/// Reads "tokens,loss" lines. An optional header may name more columns, "seconds" and "bytes". Throws
/// Error(data) with file, line and value.
[[nodiscard]] RunRecord read_curve(const std::filesystem::path& csv);

/// The loss after this number of tokens, interpolated linearly between two evaluations; nullopt outside of
/// the curve.
[[nodiscard]] std::optional<double> loss_at(const std::vector<CurvePoint>& curve, double tokens);
/// The value of `what` at which the loss first fell to `target`, interpolated likewise. nullopt if the loss
/// did not fall that far, or if the curve does not have `what`.
[[nodiscard]] std::optional<double> first_at(const std::vector<CurvePoint>& curve, double target,
                                             std::optional<double> CurvePoint::*what);

}  // namespace isthmus::app
