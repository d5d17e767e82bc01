// How a participant leaves a run, or reports its end.

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "isthmus/base/error.h"
#include "participant/participant.h"

namespace isthmus::app {

// ---- leaving ----

void Participant::request_leave(const std::string& why) {
  const std::lock_guard lock(requests_);
  if (!request_) request_ = why.empty() ? "asked to by its program" : why;
}

std::optional<std::string> Participant::request_to_leave() const {
  if (stopper_ != nullptr && stopper_->leaving()) return "asked to by a signal";
  const std::lock_guard lock(requests_);
  return request_;
}

void Participant::look_up() const {
  if (state_ != State::joining && state_ != State::taking_state) return;
  if (const auto why = request_to_leave()) throw AskedToLeave(*why);
}

/// A replica that is asked to leave does so when none of its rounds is in flight, and soon in any case.
std::optional<std::string> Participant::leaves_now(const outer_sync::NodeStatus& now) {
  constexpr std::uint64_t max_steps_to_leave = 100;
  drained_ = now.drains;
  auto why = drained_ ? drained_ : request_to_leave();
  if (!why || (!drained_ && awaits_checkpoint_of_all(now))) return {};
  if (!leave_by_) leave_by_ = outer_.step() + max_steps_to_leave;
  const bool may_leave = outer_.quiet() || outer_.step() >= *leave_by_ || outer_.frozen() || paused_;
  return may_leave ? why : std::nullopt;
}

/// Before leaving after a signal, requests a checkpoint of all replicas, once, so that little is lost if all
/// leave or none returns. Does not wait for it if the coordinator cannot be reached or rounds do not commit.
bool Participant::awaits_checkpoint_of_all(const outer_sync::NodeStatus& now) {
  constexpr auto longest = std::chrono::seconds(15);
  if (!writes_checkpoints_ || !has_gone_on()) return false;
  if (!leaving_since_) {
    leaving_since_ = Clock::now();
    leaves_at_ = outer_.step();
    hooks_.say("asked to leave by a signal; first all write a checkpoint");
    member_->request_checkpoint("it is about to leave");
  }
  return Clock::now() - *leaving_since_ < longest && now.reaches_coordinator && !outer_.frozen() &&
         !paused_ && now.common_checkpoint <= leaves_at_;
}

void Participant::begin_to_leave(const std::string& why) {
  left_ = true;
  reason_ = why;
  enter(State::leaving);
  if (drained_ && has_gone_on()) hooks_.save_checkpoint();
}

// ---- the end ----

void Participant::close(const std::string& why) {
  if (state_ == State::closed) return;
  if (state_ == State::training || state_ == State::taking_state)
    reason_ = why.empty()
                  ? fmt::format("its program ended at step {}, and the run has {}", outer_.step(), last_)
                  : why;
  try {
    if (state_ == State::finishing) {
      report_end();
      return enter(State::closed);
    }
    if (drained() && has_gone_on()) hooks_.before_the_end();
  } catch (const std::exception& error) {
    fail(error);
    say_goodbye();
    throw;
  }
  say_goodbye();
}

void Participant::drop(const std::string& why) noexcept {
  if (state_ == State::joining || state_ == State::closed) return;
  state_ = State::closed;
  member_->leave(why);
}

void Participant::say_goodbye() {
  const bool has_joined = state_ != State::joining;
  if (failed_ && records_) records_->add(outer_sync::protocol::RecordKind::log, reason_);
  const bool only_loses_connection = comes_back_ && member_->status().rank().of == 1;
  if (has_joined && !only_loses_connection) member_->leave(reason_);
  if (has_joined && !failed_) hooks_.say(fmt::format("left the run at step {}", outer_.step()));
  enter(State::closed);
}

std::string Participant::last_line() const {
  const auto hash = "global hash " + final_hash_->hex();
  if (!stopped_) return "done: " + hash;
  return fmt::format("stopped after step {}: {}; resume the run to continue it", outer_.step(), hash);
}

void Participant::report_end() {
  hooks_.before_the_end();
  auto report = member_report(outer_, member_->status(), *final_hash_);
  report.name = name_;
  report.stopped = stopped_;
  report.parameters = layout_.parameters();
  report.first_step = first_step_;
  report.tokens = tokens_;
  report.train_seconds = train_seconds_;
  report.compute_seconds = compute_seconds_;
  const auto problem = member_->done(hooks_.summary(report), *final_hash_);
  if (!problem.empty()) throw Error(ErrorKind::divergence, problem);
}

}  // namespace isthmus::app
