#include "participant/training_records.h"

#include <string_view>
#include <utility>
#include <vector>

#include "participant/participant.h"

namespace isthmus::app {

using outer_sync::protocol::RecordKind;

TrainingRecords::TrainingRecords(const Experiment& experiment, const std::filesystem::path& folder,
                                 Trace& trace, std::shared_ptr<outer_sync::RecordQueue> copies, Pace pace,
                                 const Say& say)
    : config_(experiment),
      trace_(trace),
      pace_(pace),
      metrics_(folder / "metrics.jsonl", say),
      events_(folder, say) {
  metrics_.copy_to(
      [copies = std::move(copies)](std::string line) { copies->add(RecordKind::metrics, std::move(line)); });
}

void TrainingRecords::serve(const outer_sync::MemberNode& node, const std::string& name, const Say& say) {
  node_ = &node;
  server_ = serve_metrics(
      config_.metrics, {config_.run.name, name}, [this] { return *readings_.get(); }, say);
}

void TrainingRecords::entered(const Participant& participant) {
  using State = Participant::State;
  if (participant.state() == State::training) limit_trace(participant);
  if (participant.state() >= State::finishing) write(participant);
  if (participant.state() == State::closed) trace_.close();
}

void TrainingRecords::took_state(const Participant& participant, double seconds) {
  metrics_.write({{"event", "joined"}, {"step", participant.outer().step()}, {"seconds", seconds}});
}

/// The agreed step leaps if this replica was away.
void TrainingRecords::limit_trace(const Participant& participant) {
  const auto made = participant.outer().step() - participant.first_step();
  if (made >= static_cast<std::uint64_t>(config_.run.trace_steps)) trace_.close();
}

void TrainingRecords::agreed(const Participant& participant) { limit_trace(participant); }

void TrainingRecords::evaluated(const EvaluatedShare& evaluation) {
  nlohmann::ordered_json line{{"step", evaluation.step},
                              {"eval_nats", evaluation.sum_nats},
                              {"eval_tokens", evaluation.tokens},
                              {"eval_share", {evaluation.share, evaluation.shares}}};
  if (evaluation.drift) {
    line["drift"] = *evaluation.drift;
    figures_.drift = evaluation.drift;
    events_.write(evaluation.step, {{"outer/drift", *evaluation.drift}});
  }
  metrics_.write(line);
  if (evaluation.tokens > 0)
    events_.write(evaluation.step,
                  {{"eval/loss_of_share", evaluation.sum_nats / static_cast<double>(evaluation.tokens)}});
}

void TrainingRecords::stepped(const Participant& participant, const StepRecord& record) {
  constexpr auto longest = std::chrono::seconds(1);
  records_.push_back(record);
  if (server_) {
    ++figures_.steps;
    figures_.step_durations.add(record.step_seconds);
  }
  if (pace_ == Pace::every_step || record.was_due || std::chrono::steady_clock::now() - written_ > longest)
    write(participant);
}

void TrainingRecords::write(const Participant& participant) {
  for (const auto& record : records_) write(record);
  if (server_ && !records_.empty()) {
    const auto& newest = records_.back();
    const auto& inner = newest.inner;
    figures_.tokens = participant.tokens();
    figures_.loss_spikes = inner.loss_spikes.value_or(0);
    figures_.loss = inner.loss.value_or(0);
    figures_.learning_rate = inner.lr.value_or(0);
    figures_.gradient_norm = inner.grad_norm.value_or(0);
    figures_.tokens_per_second = newest.tokens_per_second;
    figures_.utilization = newest.utilization;
    figures_.data_wait_seconds = inner.data_wait_seconds;
    figures_.all_reduce_seconds = inner.all_reduce_seconds;
    figures_.all_reduce_bytes = inner.all_reduce_bytes;
    readings_.put(readings_of(participant.outer(), *node_, figures_));
  }
  records_.clear();
  written_ = std::chrono::steady_clock::now();
}

void TrainingRecords::write(const StepRecord& record) {
  metrics_.write(line_of(record));
  std::vector<std::pair<std::string_view, double>> scalars{
      {"train/tokens_per_second", record.tokens_per_second},
      {"outer/stall_seconds", record.stats.stall_seconds},
      {"outer/rounds", static_cast<double>(record.stats.rounds)}};
  const auto add_known = [&](std::string_view name, const std::optional<double>& value) {
    if (value) scalars.emplace_back(name, *value);
  };
  add_known("train/loss", record.inner.loss);
  add_known("train/lr", record.inner.lr);
  add_known("train/grad_norm", record.inner.grad_norm);
  events_.write(record.step, scalars);
}

}  // namespace isthmus::app
