#include "worker/replica_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "isthmus/base/file.h"
#include "run/process/run_folder.h"

namespace isthmus::app {

using outer_sync::MemberNode;
using outer_sync::OuterLoop;

std::filesystem::path checkpoints_in(const std::filesystem::path& replica_folder) {
  return replica_folder / "checkpoints";
}

std::filesystem::path replica_folder(const Experiment& experiment, const std::string& name, bool resume) {
  make_private_folder(experiment.folder());  // it has the run's secret, and a coordinator's state
  auto folder = experiment.folder() / name;
  if (resume || !std::filesystem::exists(checkpoints_in(folder))) return folder;
  const auto kept = make_room(folder);
  for (const auto* goes_on : {"worker.log", incarnation_file}) {
    if (!std::filesystem::exists(kept / goes_on)) continue;
    std::filesystem::create_directories(folder);
    std::filesystem::rename(kept / goes_on, folder / goes_on);
  }
  return folder;
}

std::filesystem::path trace_file(const std::filesystem::path& replica_folder) {
  auto file = replica_folder / "trace.json";
  for (int n = 1; std::filesystem::exists(file); ++n)
    file = replica_folder / fmt::format("trace-resumed-{}.json", n);
  return file;
}

OuterLoop::LogPlan log_plan(const Experiment& experiment, const std::string& name,
                            std::span<const outer_sync::log::LoggedTensor> tensors,
                            const outer_sync::FragmentLayout& layout, const Digest& model) {
  outer_sync::log::LogHeader header;
  header.run = experiment.run.name;
  header.model = model;
  header.fragments.assign(layout.fragments().begin(), layout.fragments().end());
  header.chunk_elements = layout.chunk_elements();
  header.codec = experiment.outer.codec_spec();
  header.warmup_rounds = static_cast<std::uint64_t>(experiment.outer.warmup_steps);
  header.tensors.assign(tensors.begin(), tensors.end());
  // By name: several replicas on one machine may share `outer.log`.
  return {.folder = std::filesystem::path(experiment.outer.log) / name,
          .header = std::move(header),
          .budget = static_cast<std::uint64_t>(experiment.outer.log_budget.bytes)};
}

Turn next_turn(OuterLoop& outer, MemberNode& node, std::uint64_t last) {
  if (node.is_paused(outer.step() + 1)) return Turn::paused;
  if (!outer.may_train()) {
    const bool goes_on = node.may_begin(outer.step() + 1, outer.step(), outer.reach(outer.step()));
    return goes_on ? Turn::paused : Turn::over;
  }
  const auto pause = outer.settings().pause_after;
  outer.end_at(std::min({last, node.status().stops_at.value_or(last), std::max(pause, outer.step())}));
  const auto end = outer.step_after_next();
  if (!node.may_begin(outer.step() + 1, end, outer.reach(end))) return Turn::over;
  if (const auto stop = node.status().stops_at) outer.end_at(std::min(last, *stop));
  return Turn::step;
}

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

StepRecord record_of(const OuterLoop& outer, const MemberNode& node) {
  const auto now = node.status();
  StepRecord record;
  record.step = outer.step();
  record.inner_steps = outer.inner_steps();
  record.committing = !outer.frozen();
  record.stats = outer.stats();
  record.who = now.participation;
  record.bytes_sent = now.sent.total;
  return record;
}

nlohmann::ordered_json line_of(const StepRecord& record) {
  nlohmann::ordered_json line;
  const auto add_known = [&](const char* key, const auto& value) {
    if (value) line[key] = *value;
  };
  line["step"] = record.step;
  add_known("data_step", record.data_step);
  line["inner_steps"] = record.inner_steps;
  line["committing"] = record.committing;
  add_known("loss", record.loss);
  add_known("lr", record.lr);
  add_known("grad_norm", record.grad_norm);
  add_known("loss_spikes", record.loss_spikes);
  line["step_seconds"] = record.step_seconds;
  line["tokens_per_second"] = record.tokens_per_second;
  line["utilization"] = record.utilization;
  line["stall_seconds"] = record.stats.stall_seconds;
  line["rounds"] = record.stats.rounds;
  line["live"] = record.who.live;
  line["participating"] = record.who.participating;
  line["contributed"] = record.who.contributed;
  line["left_out"] = record.stats.left_out;
  line["rejected"] = record.stats.rejected;
  line["uncommitted_steps"] = record.stats.uncommitted_steps;
  line["bytes_sent"] = record.bytes_sent;
  if (!record.outer_steps.is_null()) line["outer_steps"] = record.outer_steps;
  return line;
}

MemberReport member_report(const OuterLoop& outer, const MemberNode& node, const Digest& global_hash) {
  const auto& stats = outer.stats();
  const auto sent = node.status().sent;
  MemberReport report;
  report.global_hash = global_hash.hex();
  report.last_step = outer.step();
  report.inner_steps = outer.inner_steps();
  report.stall_seconds = stats.stall_seconds;
  report.warmup_wait_seconds = stats.warmup_wait_seconds;
  report.finish_seconds = stats.finish_seconds;
  report.payload_bytes = sent.payload;
  report.total_bytes = sent.total;
  report.rounds = stats.rounds;
  report.warmup_rounds = stats.warmup_rounds;
  report.rejected = stats.rejected;
  report.outer_steps = stats.measured;
  report.outer_gain = ratio(stats.gains, static_cast<double>(stats.measured));
  report.outer_correlation = ratio(stats.correlations, static_cast<double>(stats.measured));
  return report;
}

}  // namespace isthmus::app
