#include "participant/figures.h"

namespace isthmus::app {

using outer_sync::OuterLoop;

nlohmann::ordered_json NewFigures::take(const OuterLoop& outer) {
  nlohmann::ordered_json out;
  const auto& fragments = outer.figures();
  taken_.resize(fragments.size());
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    const auto& figures = fragments[p];
    if (figures.round == taken_[p]) continue;
    taken_[p] = figures.round;
    if (figures.round == 0) continue;  // the state was copied from another member
    nlohmann::ordered_json line{{"fragment", p}, {"round", figures.round}};
    if (const auto& step = figures.step) {
      line["norm"] = step->norm;
      line["gain"] = step->gain;
      line["correlation"] = step->correlation;
    }
    if (figures.spread_at_send) line["spread_at_send"] = *figures.spread_at_send;
    if (figures.spread_at_apply) line["spread_at_apply"] = *figures.spread_at_apply;
    out.push_back(std::move(line));
  }
  return out;
}

OuterMeans newest_outer_steps(const OuterLoop& outer) {
  OuterMeans sum;
  double count = 0;
  for (const auto& figures : outer.figures()) {
    if (!figures.step) continue;
    ++count;
    sum.gain += figures.step->gain;
    sum.correlation += figures.step->correlation;
  }
  return {ratio(sum.gain, count), ratio(sum.correlation, count)};
}

nlohmann::ordered_json line_of(const StepRecord& record) {
  nlohmann::ordered_json line;
  const auto add_known = [&](const char* key, const auto& value) {
    if (value) line[key] = *value;
  };
  const auto& inner = record.inner;
  line["step"] = record.step;
  add_known("data_step", inner.data_step);
  line["inner_steps"] = record.inner_steps;
  line["committing"] = record.committing;
  add_known("loss", inner.loss);
  add_known("lr", inner.lr);
  add_known("grad_norm", inner.grad_norm);
  add_known("loss_spikes", inner.loss_spikes);
  line["tokens"] = inner.tokens;
  line["step_seconds"] = record.step_seconds;
  line["tokens_per_second"] = record.tokens_per_second;
  line["utilization"] = record.utilization;
  line["stall_seconds"] = record.stats.stall_seconds;
  line["late_results"] = record.stats.late_results;
  line["rounds"] = record.stats.rounds;
  line["live"] = record.who.live;
  line["participating"] = record.who.participating;
  line["contributed"] = record.who.contributed;
  line["left_out"] = record.stats.left_out;
  line["rejected"] = record.stats.rejected;
  line["uncommitted_steps"] = record.stats.uncommitted_steps;
  if (record.gossip.ended() > 0)
    line["exchanges"] = {{"averaged", record.gossip.averaged},
                         {"missed", record.gossip.missed},
                         {"refused", record.gossip.refused}};
  line["bytes_sent"] = record.bytes_sent;
  if (!record.outer_steps.is_null()) line["outer_steps"] = record.outer_steps;
  return line;
}

MemberReport member_report(const OuterLoop& outer, const outer_sync::NodeStatus& status,
                           const Digest& global_hash) {
  const auto& stats = outer.stats();
  MemberReport report;
  report.global_hash = global_hash.hex();
  report.last_step = outer.step();
  report.inner_steps = outer.inner_steps();
  report.stall_seconds = stats.stall_seconds;
  report.warmup_wait_seconds = stats.warmup_wait_seconds;
  report.finish_seconds = stats.finish_seconds;
  report.payload_bytes = status.sent.payload;
  report.total_bytes = status.sent.total;
  report.rounds = stats.rounds;
  report.warmup_rounds = stats.warmup_rounds;
  report.rejected = stats.rejected;
  report.exchanges = outer.gossip().ended();
  report.exchanges_averaged = outer.gossip().averaged;
  report.outer_steps = stats.measured;
  report.outer_gain = ratio(stats.gains, static_cast<double>(stats.measured));
  report.outer_correlation = ratio(stats.correlations, static_cast<double>(stats.measured));
  return report;
}

}  // namespace isthmus::app
