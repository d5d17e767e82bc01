#pragma once
// Every metric that a process of a run serves to Prometheus: the table behind the pages, docs/metrics.md and
// the tests. Names and units follow Prometheus' conventions: base units in the name; counters end in _total
// and start at 0 with the process.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::app {

enum class Metric : std::uint8_t {
  build_info,
  // served by trainers
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
  rank_average_seconds_total,
  rounds_applied_total,
  round_applied,
  outer_gradient_norm,
  outer_step_gain_ratio,
  outer_gradient_correlation,
  spread_at_send,
  spread_at_apply,
  rounds_left_out_total,
  rounds_rejected_total,
  exchanges_averaged_total,
  exchanges_missed_total,
  exchanges_refused_total,
  uncommitted_steps_total,
  committing,
  contributed_replicas,
  common_checkpoint_step,
  // served by all workers
  live_replicas,
  participating_replicas,
  wire_sent_bytes_total,
  wire_payload_bytes_total,
  // served by the coordinator
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
  count  ///< number of metrics
};

enum class MetricKind : std::uint8_t { gauge, counter, histogram };

struct MetricRow {
  Metric metric;
  std::string_view name;
  MetricKind kind;
  std::string_view served_by;
  /// Its own labels; every metric also has `run` and `process`.
  std::array<std::string_view, 2> labels;
  std::string_view help;
};

/// In the order of `Metric`.
[[nodiscard]] std::span<const MetricRow> metric_table();
/// Upper bounds of a histogram's buckets in seconds, except the last bucket, which has no bound.
[[nodiscard]] std::span<const double> duration_bounds();

/// Counts durations for a histogram.
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
  double value = 0;  ///< for a histogram, the sum
  std::vector<std::string> labels = {};
  std::vector<std::uint64_t> counts = {};  ///< for a histogram, by bucket
};
using Readings = std::vector<Reading>;

/// The table in Markdown, the source of docs/metrics.md.
[[nodiscard]] std::string metrics_reference();

}  // namespace isthmus::app
