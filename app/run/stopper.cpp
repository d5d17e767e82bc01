#include "run/stopper.h"

#include <unistd.h>

#include <csignal>

#include "run/signals.h"

namespace isthmus::app {

void Stopper::in_run(outer_sync::MemberNode& node, Leaving leaving) {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::in_run;
  node_ = &node;
  how_ = leaving;
}

void Stopper::ending() {
  const std::lock_guard lock(mutex_);
  phase_ = Phase::ending;
  node_ = nullptr;
}

void Stopper::on_signal(int signal, int count) {
  const std::lock_guard lock(mutex_);
  if (count > 1 || phase_ == Phase::joining) _exit(128 + signal);
  (signal == SIGTERM ? leaving_ : interrupted_) = true;
  if (node_ == nullptr) return;
  if (interrupted_) {
    node_->request_stop("asked to by a signal");
  } else if (how_ == Leaving::at_once) {
    node_->leave("asked to by a signal");
  }
}

int run_stoppable(const std::function<int(Stopper&)>& run) {
  Stopper stopper;
  const SignalThread signals([&](int signal, int count) { stopper.on_signal(signal, count); });
  const auto status = run(stopper);
  return status == 0 && stopper.interrupted() ? 130 : status;
}

}  // namespace isthmus::app
