#include "isthmus/outer_sync/engine/agreed_clock.h"

#include <algorithm>

namespace isthmus::outer_sync {

void AgreedClock::count_inner_step(const Schedule& schedule) {
  begin_interval(schedule);
  owed_ += paced_by_time_ ? pace_.tick() : 1;
}

bool AgreedClock::has_step() {
  if (step_ >= limit_) owed_ = 0;
  return owed_ > 0 && !still_;
}

void AgreedClock::make_step() {
  --owed_;
  ++step_;
}

void AgreedClock::go_to(std::uint64_t step) {
  step_ = step;
  owed_ = 0;
  pace_.cut_short();
}

/// Begins a new interval if the current one is over. The last interval ends with the run, on all replicas
/// alike.
void AgreedClock::begin_interval(const Schedule& schedule) {
  if (!paced_by_time_ || !pace_.over()) return;
  const auto begin = step_ + owed_;
  const auto end = std::max(begin + 1, std::min(schedule.interval_end(begin), limit_));
  pace_.begin(end - begin, speed_, reference_speed_);
}

std::uint64_t AgreedClock::step_after_next(const Schedule& schedule) {
  if (step_ < schedule.warmup_steps() || !paced_by_time_) return step_ + 1;
  begin_interval(schedule);
  return std::max(step_, std::min(limit_, step_ + owed_ + pace_.next()));
}

std::uint64_t AgreedClock::inner_steps(const Schedule& schedule) const {
  return paced_by_time_ && pace_.inner() > 0 ? pace_.inner() : schedule.sync_every(step_ + 1);
}

void AgreedClock::waited(bool rounds_commit, bool has_result) {
  rounds_commit_ = rounds_commit;
  if (!has_result && rounds_commit) --extra_steps_;
}

void AgreedClock::begin(bool late) {
  still_ = late;
  rounds_commit_ = !late;
  local_steps_ = 0;
}

void AgreedClock::run_on() {
  still_ = false;
  local_steps_ = 0;
}

bool AgreedClock::may_train(std::uint64_t rounds, const Schedule& schedule) const {
  return !still_ || rounds_commit_ ||
         local_steps_ < rounds * std::max(schedule.sync_every(step_), pace_.inner());
}

/// A view change takes a few round trips. There are at most as many steps without the result as agreed steps
/// around them, so the next outer gradient holds at most two intervals of steps.
bool AgreedClock::may_train_on(const Schedule& schedule) {
  if (step_ >= extra_until_) {
    extra_steps_ = inner_steps(schedule);
    extra_until_ = step_ + schedule.sync_every(step_ + 1);
  }
  return extra_steps_ > 0;
}

/// An inner step is only counted if the clock runs, and then an agreed step is made with it, or it completed
/// none. So each agreed step can leave all that an inner step completes but one, even if the clock stops at
/// every step.
bool AgreedClock::fits(const Saved& saved, std::uint64_t steps) const {
  if (!saved.pace.sound()) return false;
  if (!paced_by_time_) return saved.owed == 0;
  return saved.owed == 0 || (saved.owed - 1) / (Pace::max_completed - 1) < steps;
}

void AgreedClock::restore(const Saved& saved, std::uint64_t step) {
  step_ = step;
  if (paced_by_time_) pace_ = saved.pace;
  owed_ = saved.owed;
}

}  // namespace isthmus::outer_sync
