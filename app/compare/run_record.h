#pragma once
// What a run says of itself, or what a stranger's CSV says: a loss curve against tokens, time and bytes, and
// the figures of the whole run.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "compare/run_state.h"

namespace isthmus::app {

/// One evaluation of the global parameters.
struct CurvePoint {
  double tokens = 0;              ///< trained on so far, all replicas together
  std::optional<double> seconds;  ///< of training, evaluations and checkpoints not counted
  std::optional<double> bytes;    ///< sent by a replica, with headers and control; mean of the replicas
  double loss = 0;                ///< nats per token of held-out text
};

struct RunRecord {
  std::optional<std::int64_t> seed;  ///< a stranger's has none
  std::filesystem::path source;      ///< the run's folder, or the CSV file
  EarlyEnd ended;
  std::vector<CurvePoint> curve;  ///< tokens ascending
  /// Of runs of our own alone:
  std::uint64_t steps = 0, parameters = 0, replicas = 0;
  std::optional<double> bits;         ///< payload that a replica sent, per parameter and step
  std::optional<double> utilization;  ///< 0..1: inner steps' part of the training time, mean of the replicas
  std::optional<double> stall_seconds;  ///< waited for late results; the replica that waited longest
  std::string commit;                   ///< that trained it; empty where the summary does not say it
  std::string global_hash;              ///< of its last parameters, equal on all replicas; likewise

  /// Of outer steps, means (outer_sync/engine/step_figures.h).
  std::optional<double> outer_gain, outer_correlation;

  [[nodiscard]] double tokens() const { return curve.empty() ? 0 : curve.back().tokens; }
  /// Its final loss can be compared: it has had all of its tokens, or of its time.
  [[nodiscard]] bool is_whole() const { return ended.how.empty() || ended.how == "time"; }
  /// "seed 2 diverged at step 90": how one of our own runs that is not whole ended.
  [[nodiscard]] std::string ended_line() const;
};

/// Final losses of whole runs that have the same seed.
struct SeedPairs {
  std::vector<std::int64_t> seeds;
  std::vector<double> arm, against;  ///< as many, in their order
};
[[nodiscard]] SeedPairs pair_by_seed(const std::vector<RunRecord>& arm,
                                     const std::vector<RunRecord>& against);

/// Reads a run's folder: metrics.jsonl of the run and of its workers, and summary.json where it has come to
/// an end. Lines that are damaged are left out. Throws Error(data) where there is no evaluation in it.
[[nodiscard]] RunRecord read_run(const RunPlan& run);

/// Reads "tokens,loss" lines, with a header or without; further columns "seconds" and "bytes" by name. Throws
/// Error(data) naming file, line and value.
[[nodiscard]] RunRecord read_curve(const std::filesystem::path& csv);

/// The loss after so many tokens, between two evaluations by a straight line; nothing outside of the curve.
[[nodiscard]] std::optional<double> loss_at(const std::vector<CurvePoint>& curve, double tokens);
/// Where the loss first came down to `target`, likewise; `get` says in what. Nothing where it did not, or
/// where the curve does not have it.
[[nodiscard]] std::optional<double> first_at(const std::vector<CurvePoint>& curve, double target,
                                             std::optional<double> CurvePoint::*what);

}  // namespace isthmus::app
