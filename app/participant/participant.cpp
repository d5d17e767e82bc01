#include "participant/participant.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/time.h"
#include "run/experiment/live_settings.h"

namespace isthmus::app {

using outer_sync::Admission;
using outer_sync::Evicted;

namespace {

bool falls_on(std::int64_t every, std::uint64_t step) {
  return every > 0 && step % static_cast<std::uint64_t>(every) == 0;
}

}  // namespace

Participant::Participant(ParticipantParts parts, TrainingHooks& hooks)
    : config_(parts.experiment),
      name_(std::move(parts.name)),
      layout_(parts.layout),
      hooks_(hooks),
      observers_(std::move(parts.observers)),
      folder_(std::move(parts.folder)),
      records_(std::move(parts.records)),
      stopper_(parts.stopper),
      writes_checkpoints_(parts.writes_checkpoints),
      steps_(static_cast<std::uint64_t>(config_.run.steps)),
      last_(config_.run.last_step()),
      member_(std::move(parts.member)),
      outer_(config_.outer, layout_, std::move(parts.state), member_->exchange(), parts.trace,
             noise_seed(config_, name_)) {}

Participant::~Participant() {
  if (stopper_ != nullptr) stopper_->ending();
}

// ---- states ----

void Participant::enter(State state) {
  state_ = state;
  if (stopper_ != nullptr) {
    if (state == State::training) stopper_->in_run();
    if (state == State::closed) stopper_->ending();
  }
  tell([this](ParticipantObserver& observer) { observer.entered(*this); });
  // Only now: until the hooks have ended their threads, a signal asks this replica to leave.
  if (stopper_ != nullptr && state == State::taking_state) stopper_->joining();
}

template <class Tell>
void Participant::tell(Tell tell) {
  tell(static_cast<ParticipantObserver&>(hooks_));
  for (auto* observer : observers_) tell(*observer);
}

/// Keeps the error for `close`, which reports it to the others.
template <class Work>
auto Participant::guarded(Work work) {
  try {
    return work();
  } catch (const std::exception& error) {
    fail(error);
    throw;
  }
}

/// For all of an inner step. Reports a divergence with the last heartbeat before this replica leaves.
template <class Work>
void Participant::step_guarded(Work work) {
  guarded([&] {
    try {
      work();
    } catch (const Evicted& why) {
      lose_state(why.what());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::divergence)
        member_->report({.step = outer_.step(), .loss = std::numeric_limits<double>::quiet_NaN()});
      throw;
    }
  });
}

/// Calls no hook that might fail again.
void Participant::fail(const std::exception& error) {
  failed_ = true;
  left_ = false;
  reason_ = error.what();
  const auto* own = dynamic_cast<const Error*>(&error);
  comes_back_ = own != nullptr && hooks_.comes_back_after(*own);
  state_ = State::leaving;
  if (stopper_ != nullptr) stopper_->ending();
  for (auto* observer : observers_) observer->entered(*this);
}

// ---- the whole ----

void Participant::run(outer_sync::protocol::Hello hello) {
  join(std::move(hello));
  try {
    while (next()) step_guarded([&] { count(hooks_.train_step()); });
  } catch (const std::exception&) {
    close();
    throw;
  }
  close();
}

void Participant::join(outer_sync::protocol::Hello hello) {
  try {
    enter_run(std::move(hello));
  } catch (const AskedToLeave& why) {
    begin_to_leave(why.what());
  } catch (const std::exception& error) {
    fail(error);
    close();
    throw;
  }
}

bool Participant::next() {
  if (state_ != State::training && state_ != State::taking_state) return false;
  return guarded([&] {
    while (state_ == State::training || state_ == State::taking_state) {
      try {
        if (!await_turn()) continue;
        began_ = Clock::now();
        waited_before_ = waited();
        return true;
      } catch (const Evicted& why) {
        lose_state(why.what());
      } catch (const AskedToLeave& why) {
        begin_to_leave(why.what());
      }
    }
    if (state_ == State::finishing) {
      if (has_gone_on()) hooks_.save_checkpoint();
      evaluate();
    }
    return false;
  });
}

void Participant::average_gradients(std::span<float> gradients, std::uint64_t tokens,
                                    std::span<const SampleRange> samples) {
  if (state_ == State::training) step_guarded([&] { outer_.average_gradients(gradients, tokens, samples); });
}

void Participant::made(const InnerStep& step) {
  step_guarded([&] { count(step); });
}

std::optional<outer_sync::SavedOuterLoop> Participant::save() {
  std::optional<outer_sync::SavedOuterLoop> saved;
  if (state_ == State::taking_state) return saved;
  if (state_ == State::training) {
    step_guarded([&] { saved = outer_.save(); });
    return saved;
  }
  guarded([&] {
    try {
      saved = outer_.save();
    } catch (const Evicted& why) {
      hooks_.say(why.what());
    }
  });
  return saved;
}

// ---- joining ----

void Participant::enter_run(outer_sync::protocol::Hello hello) {
  const auto admission = member_->join(std::move(hello));
  look_up();
  if (admission.how == Admission::How::joins) {
    take_state();
  } else {
    const bool resumes = admission.how == Admission::How::resumes;
    auto restored = resumes ? hooks_.restore(admission.step) : TrainingHooks::Restored{};
    try {
      member_->activate(outer_, restored.ledger, std::move(restored.trained));
      resumed_ = resumes;
    } catch (const Evicted& why) {  // the first view has begun without this replica
      hooks_.say(why.what());
      take_state();
    }
  }
  first_step_ = outer_.step();
  begins_ = true;
  wants_ = regularly_wants();
  if (stopper_ != nullptr) stopper_->in_run();
  hooks_.joined();
  if (first_step_ == 0) evaluate();
  enter(State::training);
}

/// Copies the state from other members. The loop is then at the agreed step.
void Participant::take_state() {
  const auto begin = Clock::now();
  member_->catch_up(outer_);
  ++states_taken_;
  begins_ = true;
  wants_ = regularly_wants();
  const double took = seconds_since(begin);
  hooks_.say(fmt::format("takes part from step {}, {:.1f} s after it was admitted", outer_.step(), took));
  tell([&](ParticipantObserver& observer) { observer.took_state(*this, took); });
}

/// The next call of `next` copies the state of others.
void Participant::lose_state(const std::string& why) {
  hooks_.say(why);
  drained_.reset();
  leave_by_.reset();
  left_ = false;
  enter(State::taking_state);
}

// ---- steps ----

/// False if the state has changed: the run is over, or this replica leaves.
bool Participant::await_turn() {
  if (state_ == State::taking_state) {
    look_up();
    take_state();
    enter(State::training);
  }
  if (std::exchange(begins_, false)) {
    outer_.end_at(last_);
    // Agreed steps that remained when the checkpoint was taken.
    while (make_agreed_step()) at_agreed_step();
  }
  while (outer_.step() < last_) {
    const auto now = member_->status();
    if (const auto why = leaves_now(now)) {
      begin_to_leave(*why);
      return false;
    }
    const auto found = turn(now);
    paused_ = found == Turn::paused;
    if (found == Turn::step) return true;
    if (found == Turn::over) break;
  }
  finish();
  return false;
}

/// The agreed step does not pass a pause or a stop, however many agreed steps an inner step completes.
Participant::Turn Participant::turn(const outer_sync::NodeStatus& now) {
  if (member_->is_paused(outer_.step() + 1)) return Turn::paused;
  if (!outer_.may_train()) {
    const bool goes_on = member_->may_begin(outer_.step() + 1, outer_.step(), outer_.reach(outer_.step()));
    return goes_on ? Turn::paused : Turn::over;
  }
  const auto pause = outer_.settings().pause_after;
  outer_.end_at(std::min({last_, now.stops_at.value_or(last_), std::max(pause, outer_.step())}));
  const auto end = outer_.step_after_next();
  if (!member_->may_begin(outer_.step() + 1, end, outer_.reach(end))) return Turn::over;
  if (const auto stop = member_->status().stops_at) outer_.end_at(std::min(last_, *stop));
  return Turn::step;
}

void Participant::count(const InnerStep& step) {
  if (state_ != State::training) return;  // it was evicted while it averaged gradients: the step is void
  const bool was_due = is_due();
  const double own = seconds_since(began_) - (waited() - waited_before_);
  const auto before = outer_.step();
  outer_.after_step(step.tokens, step.samples);
  const double took = seconds_since(began_);
  tokens_ += step.tokens;
  train_seconds_ += took;
  compute_seconds_ += step.compute_seconds.value_or(own);
  // A mean over the last steps, without waits: otherwise a fast replica would seem as slow as the one it
  // waits for.
  constexpr double weight = 1.0 / 16;
  const double busy = step.busy_seconds.value_or(took - (waited() - waited_before_) - step.waited_seconds);
  busy_step_seconds_ = busy_step_seconds_ > 0 ? (1 - weight) * busy_step_seconds_ + weight * busy : busy;
  report(step, took, was_due);
  if (outer_.step() != before) at_agreed_step();
  while (make_agreed_step()) at_agreed_step();
}

void Participant::report(const InnerStep& step, double took, bool was_due) {
  const auto now = member_->status();
  const double speed = busy_step_seconds_ > 0 ? 1 / busy_step_seconds_ : 0;
  outer_.set_speeds(speed, now.reference_speed);
  StepRecord record;
  record.inner = step;
  record.inner.samples = {};
  record.step = outer_.step();
  record.inner_steps = outer_.inner_steps();
  record.committing = !outer_.frozen();
  record.was_due = was_due;
  record.own_speed = speed;
  record.reference_speed = now.reference_speed;
  record.step_seconds = took;
  record.tokens_per_second = static_cast<double>(step.tokens) / took;
  record.utilization = compute_seconds_ / train_seconds_;
  record.stats = outer_.stats();
  record.gossip = outer_.gossip();
  record.who = now.participation;
  record.bytes_sent = now.sent.total + step.all_reduce_bytes;
  record.outer_steps = new_figures_.take(outer_);
  const auto means = newest_outer_steps(outer_);
  member_->report({.step = record.step,
                   .loss = step.loss.value_or(0),
                   .tokens_per_second = record.tokens_per_second,
                   .utilization = record.utilization,
                   .other_bytes = step.all_reduce_bytes,
                   .inner_steps_per_second = speed,
                   .disk_free = disk_free(),
                   .outer_gain = means.gain,
                   .outer_correlation = means.correlation,
                   .late_results = record.stats.late_results});
  tell([&](ParticipantObserver& observer) { observer.stepped(*this, record); });
}

bool Participant::make_agreed_step() {
  const auto begin = Clock::now();
  const bool made = outer_.next_step();
  train_seconds_ += seconds_since(begin);
  return made;
}

/// Work between two agreed steps.
void Participant::at_agreed_step() {
  wants_ = {};
  tell([this](ParticipantObserver& observer) { observer.agreed(*this); });
  if (outer_.step() >= last_) return;
  wants_ = regularly_wants();
  if (member_->checkpoint_due(outer_.step())) wants_.checkpoint = true;
  if (wants_.evaluation) {
    outer_.complete_step();
    evaluate();
  }
  if (wants_.checkpoint) hooks_.save_checkpoint();
}

Participant::Wants Participant::regularly_wants() const {
  const auto step = outer_.step();
  auto eval_every = config_.run.eval_every, checkpoint_every = config_.run.checkpoint_every;
  if (!outer_.settings().changes.empty()) {
    const auto run = run_config_at(config_.run, outer_.settings(), step);
    eval_every = run.eval_every, checkpoint_every = run.checkpoint_every;
  }
  return {.evaluation = falls_on(eval_every, step), .checkpoint = falls_on(checkpoint_every, step)};
}

/// Once per step, even if a stop falls on a step that is due anyway: the coordinator counts the reports.
void Participant::evaluate() {
  if (evaluated_ == outer_.step()) return;
  evaluated_ = outer_.step();
  hooks_.evaluate(outer_.step());
}

void Participant::report_evaluation(const EvaluatedShare& evaluation) {
  member_->report_evaluation(evaluation.step, evaluation.sum_nats, evaluation.tokens);
  tell([&](ParticipantObserver& observer) { observer.evaluated(evaluation); });
}

bool Participant::is_due() const {
  const auto& schedule = outer_.schedule();
  const auto next = outer_.step() + 1;
  if (outer_.frozen() || next <= schedule.warmup_steps() || config_.outer.paced_by_time()) return true;
  if (outer_.may_exchange_at(next)) return true;
  for (outer_sync::FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (schedule.sends(p, next)) return true;
    if (outer_.fragments()[p].round < schedule.rounds_due(p, next)) return true;
  }
  return false;
}

double Participant::waited() const {
  return outer_.stats().stall_seconds + outer_.stats().warmup_wait_seconds;
}

std::uint64_t Participant::disk_free() {
  constexpr auto every = std::chrono::seconds(10);
  if (folder_.empty() || (disk_seen_ && Clock::now() - *disk_seen_ <= every)) return disk_free_;
  std::error_code none;
  const auto space = std::filesystem::space(folder_, none);
  disk_free_ = none ? 0 : space.available;
  disk_seen_ = Clock::now();
  return disk_free_;
}

/// Completes the last rounds, but not of a run that was interrupted, or resumed at its end.
void Participant::finish() {
  stopped_ = outer_.step() < steps_;
  if (!stopped_ && has_gone_on()) {
    const auto begin = Clock::now();
    outer_.finish();
    train_seconds_ += seconds_since(begin);
  }
  outer_.complete_step();
  final_hash_ = outer_.global_hash();
  enter(State::finishing);
}

}  // namespace isthmus::app
