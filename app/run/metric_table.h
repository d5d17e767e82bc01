#pragma once
// Every metric that a process of a run serves to Prometheus: the one table that the pages, docs/metrics.md
// and the tests are made from. Names and units follow Prometheus' conventions: base units in the name,
// counters end in _total and start at 0 with the process.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::app {

enum class Metric : std::uint8_t {
  build_info,
  // of workers that train
  agreed_step,
  steps_total,
  inner_steps,
  tokens_total,
  tokens_per_second,
  step_duration_seconds,
  last_step_timestamp_seconds,
  loss_nats,
  loss_spikes_total,
  learning_rate,
  gradient_norm,
  drift_ratio,
  utilization_ratio,
  outer_wait_seconds_total,
  warmup_wait_seconds_total,
  data_wait_seconds_total,
  rounds_applied_total,
  round_applied,
  outer_gradient_norm,
  outer_step_gain_ratio,
  outer_gradient_correlation,
  spread_at_send,
  spread_at_apply,
  rounds_left_out_total,
  rounds_rejected_total,
  uncommitted_steps_total,
  committing,
  contributed_replicas,
  common_checkpoint_step,
  // of all workers
  live_replicas,
  participating_replicas,
  wire_sent_bytes_total,
  wire_payload_bytes_total,
  // of the coordinator
  run_step,
  run_steps,
  evaluation_step,
  evaluation_loss_nats,
  view,
  view_changes_total,
  replicas,
  relayed_pairs,
  member_step,
  member_lag_steps,
  member_lag_rounds,
  member_loss_nats,
  member_utilization_ratio,
  member_tokens_per_second,
  member_sent_bytes_total,
  member_uplink_bytes_per_second,
  member_outer_gradient_norm,
  member_outer_gradient_cosine,
  member_outlier_rounds_total,
  path_round_trip_seconds,
  path_shortest_round_trip_seconds,
  path_bytes_per_second,
  count  ///< how many there are
};

enum class MetricKind : std::uint8_t { gauge, counter, histogram };

struct MetricRow {
  Metric metric;
  std::string_view name;
  MetricKind kind;
  std::string_view served_by;
  /// Its own labels; every metric has `run` and `process` besides.
  std::array<std::string_view, 2> labels;
  std::string_view help;
};

/// In the order of `Metric`.
[[nodiscard]] std::span<const MetricRow> metric_table();
/// Of a histogram in seconds: upper bounds of its buckets but for the last, which has none.
[[nodiscard]] std::span<const double> duration_bounds();

/// How long things took, for a histogram.
class Durations {
 public:
  Durations();
  void add(double seconds);
  [[nodiscard]] double sum() const { return sum_; }
  /// By bucket, not cumulative; one more than there are bounds.
  [[nodiscard]] const std::vector<std::uint64_t>& counts() const { return counts_; }

 private:
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

/// One value of a metric: `labels` are the values of the metric's own labels, in their order.
struct Reading {
  Metric metric;
  double value = 0;  ///< of a histogram the sum
  std::vector<std::string> labels = {};
  std::vector<std::uint64_t> counts = {};  ///< of a histogram, by bucket
};
using Readings = std::vector<Reading>;

/// The table in Markdown; docs/metrics.md is made of it.
[[nodiscard]] std::string metrics_reference();

}  // namespace isthmus::app
