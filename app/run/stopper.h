#pragma once
// What SIGTERM and Ctrl-C do to a worker. Made before any other thread; the signals' thread calls it.

#include <atomic>
#include <functional>
#include <mutex>

#include "isthmus/outer_sync/net/member/member_node.h"

namespace isthmus::app {

/// In the run a signal takes this worker out of it, and the others go on; a second one ends it at once.
/// Before the run there is nothing to leave, so that the first one ends it too. A worker that is ending must
/// get to say why.
class Stopper {
 public:
  /// Who trains leaves between two steps, when nothing of it is under way; who only reduces at once.
  enum class Leaving { between_steps, at_once };

  void in_run(outer_sync::MemberNode& node, Leaving leaving = Leaving::between_steps);
  /// It is to take the state from others, and is in the run again afterwards.
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
  outer_sync::MemberNode* node_ = nullptr;
  Leaving how_ = Leaving::between_steps;
  std::atomic<int> signal_ = 0;
};

/// Runs a replica whose stopper hears of signals from the beginning, before there is any other thread.
/// Returns its exit status.
[[nodiscard]] int run_stoppable(const std::function<int(Stopper&)>& run);

}  // namespace isthmus::app
