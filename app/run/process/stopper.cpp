#include "run/process/stopper.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

#include "isthmus/base/say.h"
#include "run/process/signals.h"

namespace isthmus::app {

void Stopper::in_run(outer_sync::MemberNode& node, Leaving leaving) {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::in_run;
  node_ = &node;
  how_ = leaving;
}

void Stopper::joining() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::joining;
}

void Stopper::ending() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::ending;
  node_ = nullptr;
}

void Stopper::on_signal(int signal, int count) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::joining) say_error(fmt::format("ended by signal {} before it joined the run", signal));
  if (count > 1 || phase_ == Phase::joining) _exit(128 + signal);
  if (phase_ == Phase::ending) return;
  signal_ = signal;
  if (how_ == Leaving::at_once) node_->leave("asked to by a signal");
}

int run_stoppable(const std::function<int(Stopper&)>& run) {
  Stopper stopper;
  const SignalThread signals([&](int signal, int count) { stopper.on_signal(signal, count); });
  return run(stopper);
}

}  // namespace isthmus::app
