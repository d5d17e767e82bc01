#include "run/metrics/run_readings.h"

#include <algorithm>
#include <chrono>

namespace isthmus::app {
namespace {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Heartbeat;
using outer_sync::protocol::Round;

double number(std::uint64_t value) { return static_cast<double>(value); }

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The newest round of each fragment that any member has applied.
std::vector<Round> foremost_rounds(const Coordinator::Members& members) {
  std::vector<Round> out;
  for (const auto& [name, member] : members) {
    const auto& fragments = member.heartbeat.fragments;
    out.resize(std::max(out.size(), fragments.size()));
    for (std::size_t p = 0; p < fragments.size(); ++p) out[p] = std::max(out[p], fragments[p].first);
  }
  return out;
}

std::uint64_t rounds_behind(const Heartbeat& beat, const std::vector<Round>& foremost) {
  std::uint64_t most = 0;
  for (std::size_t p = 0; p < beat.fragments.size(); ++p)
    most = std::max<std::uint64_t>(most, foremost[p] - beat.fragments[p].first);
  return most;
}

void add_members(Readings& out, const Coordinator::Members& members) {
  const auto foremost = foremost_rounds(members);
  std::uint64_t first = 0, last = 0;
  bool any = false;
  for (const auto& [name, member] : members) {
    if (!outer_sync::protocol::trains(member.hello.member)) continue;
    const auto step = member.heartbeat.step;
    first = std::max(first, step);
    last = any ? std::min(last, step) : step;
    any = true;
  }
  out.push_back({Metric::run_step, number(last)});
  for (const auto& [name, member] : members) {
    const auto& beat = member.heartbeat;
    const auto add = [&, &name = name](Metric metric, double value) {
      out.push_back({metric, value, {name}});
    };
    add(Metric::member_sent_bytes_total, number(beat.bytes_sent));
    add(Metric::member_lag_rounds, number(rounds_behind(beat, foremost)));
    if (member.uplink > 0) add(Metric::member_uplink_bytes_per_second, number(member.uplink));
    if (!outer_sync::protocol::trains(member.hello.member)) continue;
    add(Metric::member_step, number(beat.step));
    add(Metric::member_lag_steps, number(first - beat.step));
    add(Metric::member_loss_nats, beat.loss);
    add(Metric::member_utilization_ratio, beat.utilization);
    add(Metric::member_tokens_per_second, beat.tokens_per_second);
  }
}

void add_paths(Readings& out, const Coordinator& coordinator) {
  if (coordinator.members().size() > outer_sync::protocol::max_compared_members) return;
  using Seconds = std::chrono::duration<double>;
  for (const auto& path : coordinator.paths().all()) {
    out.push_back({Metric::path_round_trip_seconds, Seconds(path.round_trip).count(), {path.from, path.to}});
    out.push_back(
        {Metric::path_shortest_round_trip_seconds, Seconds(path.shortest).count(), {path.from, path.to}});
    if (path.bytes_per_second > 0)
      out.push_back({Metric::path_bytes_per_second, number(path.bytes_per_second), {path.from, path.to}});
  }
}

}  // namespace

Readings readings_of(const Coordinator& coordinator, const RunFigures& figures) {
  Readings out = {
      {Metric::run_steps, number(figures.steps)},
      {Metric::view, number(coordinator.view())},
      {Metric::view_changes_total, number(figures.view_changes)},
      {Metric::replicas, number(coordinator.trainers())},
      {Metric::participating_replicas, number(coordinator.participating())},
      {Metric::relayed_pairs, number(coordinator.relays().size())},
  };
  if (!figures.evaluations->empty()) {
    const auto& [step, loss] = *figures.evaluations->rbegin();
    out.push_back({Metric::evaluation_step, number(step)});
    out.push_back({Metric::evaluation_loss_nats, loss});
  }
  for (const auto& [name, report] : *figures.gradients) {
    out.push_back({Metric::member_outer_gradient_norm, report.norm, {name}});
    out.push_back({Metric::member_outer_gradient_cosine, report.cosine, {name}});
    out.push_back({Metric::member_outlier_rounds_total, number(report.outlier_rounds), {name}});
  }
  add_members(out, coordinator.members());
  add_paths(out, coordinator);
  return out;
}

Readings readings_of(const outer_sync::OuterLoop& outer, const outer_sync::MemberNode& node,
                     const ReplicaFigures& figures) {
  const auto& stats = outer.stats();
  const auto now = node.status();
  auto out = readings_of(now);
  for (auto& reading : out) {
    if (reading.metric == Metric::wire_sent_bytes_total || reading.metric == Metric::wire_payload_bytes_total)
      reading.value += number(figures.all_reduce_bytes);
  }
  const Readings of_steps = {
      {Metric::agreed_step, number(outer.step())},
      {Metric::steps_total, number(figures.steps)},
      {Metric::inner_steps, number(outer.inner_steps())},
      {Metric::tokens_total, number(figures.tokens)},
      {Metric::tokens_per_second, figures.tokens_per_second},
      {Metric::step_duration_seconds, figures.step_durations.sum(), {}, figures.step_durations.counts()},
      {Metric::last_step_timestamp_seconds, unix_time()},
      {Metric::loss_nats, figures.loss},
      {Metric::loss_spikes_total, number(figures.loss_spikes)},
      {Metric::learning_rate, figures.learning_rate},
      {Metric::gradient_norm, figures.gradient_norm},
      {Metric::utilization_ratio, figures.utilization},
      {Metric::data_wait_seconds_total, figures.data_wait_seconds},
      {Metric::rank_average_seconds_total, figures.rank_average_seconds},
  };
  const Readings of_rounds = {
      {Metric::outer_wait_seconds_total, stats.stall_seconds},
      {Metric::warmup_wait_seconds_total, stats.warmup_wait_seconds + figures.all_reduce_seconds},
      {Metric::rounds_applied_total, number(stats.rounds)},
      {Metric::rounds_left_out_total, number(stats.left_out)},
      {Metric::rounds_rejected_total, number(stats.rejected)},
      {Metric::exchanges_averaged_total, number(outer.gossip().averaged)},
      {Metric::exchanges_missed_total, number(outer.gossip().missed)},
      {Metric::exchanges_refused_total, number(outer.gossip().refused)},
      {Metric::uncommitted_steps_total, number(stats.uncommitted_steps)},
      {Metric::committing, outer.frozen() ? 0.0 : 1.0},
      {Metric::contributed_replicas, number(now.participation.contributed)},
      {Metric::common_checkpoint_step, number(now.common_checkpoint)},
  };
  out.insert(out.end(), of_steps.begin(), of_steps.end());
  out.insert(out.end(), of_rounds.begin(), of_rounds.end());
  if (figures.drift) out.push_back({Metric::drift_ratio, *figures.drift});
  for (std::size_t p = 0; p < outer.fragments().size(); ++p) {
    const auto add = [&](Metric metric, double value) {
      out.push_back({metric, value, {std::to_string(p)}});
    };
    add(Metric::round_applied, number(outer.fragments()[p].round));
    const auto& of_round = outer.figures()[p];
    if (of_round.step) {
      add(Metric::outer_gradient_norm, of_round.step->norm);
      add(Metric::outer_step_gain_ratio, of_round.step->gain);
      add(Metric::outer_gradient_correlation, of_round.step->correlation);
    }
    if (of_round.spread_at_send) add(Metric::spread_at_send, *of_round.spread_at_send);
    if (of_round.spread_at_apply) add(Metric::spread_at_apply, *of_round.spread_at_apply);
  }
  return out;
}

Readings readings_of(const outer_sync::NodeStatus& now) {
  return {{Metric::wire_sent_bytes_total, number(now.sent.total)},
          {Metric::wire_payload_bytes_total, number(now.sent.payload)},
          {Metric::live_replicas, number(now.participation.live)},
          {Metric::participating_replicas, number(now.participation.participating)}};
}

}  // namespace isthmus::app
