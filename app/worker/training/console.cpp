#include "worker/training/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/say.h"
#include "participant/participant.h"
#include "run/output/terminal.h"

namespace isthmus::app {

Console::Console(std::string name, bool quiet)
    : name_(std::move(name)),
      progress_(quiet ? nullptr : std::make_unique<Progress>(stdout, is_terminal(stdout))) {}

void Console::say(const std::string& text) {
  records_->add(outer_sync::protocol::RecordKind::log, text);
  const std::lock_guard lock(output_);
  if (progress_) return progress_->message(name_ + ": " + text);
  say_line(text);
}

void Console::entered(const Participant& participant) {
  if (!progress_ || participant.state() != Participant::State::closed) return;
  const std::lock_guard lock(output_);
  progress_->finish();
}

void Console::stepped(const Participant& participant, const StepRecord& record) {
  if (!progress_) return;
  const auto& experiment = participant.experiment();
  ProgressState state;
  state.step = record.step;
  state.steps = static_cast<std::uint64_t>(experiment.run.steps);
  state.loss = record.inner.loss.value_or(0);
  state.tokens_per_second = record.tokens_per_second;
  state.utilization = record.utilization;
  const auto made = std::max<std::uint64_t>(1, state.step - participant.first_step());
  state.eta_seconds = participant.train_seconds() / static_cast<double>(made) *
                      static_cast<double>(state.steps - std::min(state.step, state.steps));
  state.note = record.committing ? name_ : "NOT COMMITTING";
  if (experiment.outer.paced_by_time() && record.committing)
    state.note += fmt::format(", H {}", record.inner_steps);
  const std::lock_guard lock(output_);
  progress_->update(state);
}

}  // namespace isthmus::app
