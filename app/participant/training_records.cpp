#include "participant/training_records.h"

#include <utility>

#include "participant/figures.h"
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
      curves_(folder, folder / "metrics.jsonl", say) {
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
  write_steps();  // they come first in the files, too
  nlohmann::ordered_json line{{"step", evaluation.step},
                              {"eval_nats", evaluation.sum_nats},
                              {"eval_tokens", evaluation.tokens},
                              {"eval_share", {evaluation.share, evaluation.shares}}};
  if (evaluation.drift) {
    line["drift"] = *evaluation.drift;
    figures_.drift = evaluation.drift;
  }
  write(line);
}

void TrainingRecords::stepped(const Participant& participant, const StepRecord& record) {
  constexpr auto longest = std::chrono::seconds(1);
  records_.push_back(record);
  if (server_) {
    newest_ = record;
    ++figures_.steps;
    figures_.step_durations.add(record.step_seconds);
  }
  if (pace_ == Pace::every_step || record.was_due || std::chrono::steady_clock::now() - written_ > longest)
    write(participant);
}

void TrainingRecords::write(const Participant& participant) {
  write_steps();
  if (newest_) {
    const auto& inner = newest_->inner;
    figures_.tokens = participant.tokens();
    figures_.loss_spikes = inner.loss_spikes.value_or(0);
    figures_.loss = inner.loss.value_or(0);
    figures_.learning_rate = inner.lr.value_or(0);
    figures_.gradient_norm = inner.grad_norm.value_or(0);
    figures_.tokens_per_second = newest_->tokens_per_second;
    figures_.utilization = newest_->utilization;
    figures_.data_wait_seconds = inner.data_wait_seconds;
    figures_.all_reduce_seconds = inner.all_reduce_seconds;
    figures_.rank_average_seconds = inner.rank_average_seconds;
    figures_.all_reduce_bytes = inner.all_reduce_bytes;
    readings_.put(readings_of(participant.outer(), *node_, figures_));
    newest_.reset();
  }
  written_ = std::chrono::steady_clock::now();
}

void TrainingRecords::write_steps() {
  for (const auto& record : records_) write(line_of(record));
  records_.clear();
}

void TrainingRecords::write(const nlohmann::ordered_json& line) {
  metrics_.write(line);
  curves_.add(line);
}

}  // namespace isthmus::app
