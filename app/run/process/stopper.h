#pragma once
// Effect of SIGTERM and Ctrl-C on a worker. Create it before any other thread; the signals' thread calls it.

#include <atomic>
#include <functional>
#include <mutex>

#include "isthmus/outer_sync/net/member/member_node.h"

namespace isthmus::app {

/// In the run, a signal makes this worker leave, and the others continue; a second one ends it at once.
/// Before the run, the first one ends it at once. A worker that is ending ignores the first one, so that it
/// can report why it ends.
class Stopper {
 public:
  /// For a trainer, which leaves between two steps, when none of its rounds is in flight.
  void in_run();
  /// For a reducer, which leaves at once.
  void in_run(outer_sync::MemberNode& node);
  /// The worker copies the state from others; `in_run` follows.
  void joining();
  void ending();
  [[nodiscard]] bool leaving() const { return signal_ != 0; }
  /// Exit status of a worker that has left: 143 after SIGTERM, 130 after Ctrl-C.
  [[nodiscard]] int exit_status() const { return 128 + signal_; }

  void on_signal(int signal, int count);

 private:
  enum class Phase { joining, in_run, ending };

  std::mutex mutex_;
  Phase phase_ = Phase::joining;
  outer_sync::MemberNode* leaves_at_once_ = nullptr;
  std::atomic<int> signal_ = 0;
};

/// Runs a replica with a stopper that receives signals from the start, before there is any other thread.
/// Returns its exit status.
[[nodiscard]] int run_stoppable(const std::function<int(Stopper&)>& run);

}  // namespace isthmus::app
