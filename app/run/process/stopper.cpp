#include "run/process/stopper.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "isthmus/base/say.h"
#include "run/process/signals.h"

namespace isthmus::app {

void Stopper::in_run() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::in_run;
}

void Stopper::in_run(outer_sync::MemberNode& node) {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::in_run;
  leaves_at_once_ = &node;
}

void Stopper::joining() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::joining;
}

void Stopper::ending() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::ending;
  leaves_at_once_ = nullptr;
}

void Stopper::on_signal(int signal, int count) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::joining) say_error(fmt::format("ended by signal {} before it joined the run", signal));
  if (count > 1 || phase_ == Phase::joining) _exit(128 + signal);
  if (phase_ == Phase::ending) return;
  signal_ = signal;
  if (leaves_at_once_ != nullptr) leaves_at_once_->leave("asked to by a signal");
}

int run_stoppable(const std::function<int(Stopper&)>& run) {
  Stopper stopper;
  const SignalThread signals([&](int signal, int count) { stopper.on_signal(signal, count); });
  return run(stopper);
}

}  // namespace isthmus::app
