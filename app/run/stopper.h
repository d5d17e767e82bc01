#pragma once
// What a signal does to a worker.

#include <atomic>
#include <functional>
#include <mutex>

#include "isthmus/outer_sync/transport/member_node.h"

namespace isthmus::app {

/// In the run Ctrl-C asks all to stop at a step that they share, and SIGTERM takes this one out of the run;
/// before it there is nothing to agree on; and a worker that is ending must get to say why.
class Stopper {
 public:
  /// Who trains leaves between two steps, when nothing of it is under way; who only reduces at once.
  enum class Leaving { between_steps, at_once };

  void in_run(outer_sync::MemberNode& node, Leaving leaving = Leaving::between_steps);
  void ending();
  [[nodiscard]] bool interrupted() const { return interrupted_; }
  [[nodiscard]] bool leaving() const { return leaving_; }

  void on_signal(int signal, int count);

 private:
  enum class Phase { joining, in_run, ending };

  std::mutex mutex_;
  Phase phase_ = Phase::joining;
  outer_sync::MemberNode* node_ = nullptr;
  Leaving how_ = Leaving::between_steps;
  std::atomic<bool> interrupted_ = false, leaving_ = false;
};

/// Runs a replica whose stopper hears of signals from the beginning, before there is any other thread.
/// Returns its exit status, or 130 where it has ended well because it was interrupted.
[[nodiscard]] int run_stoppable(const std::function<int(Stopper&)>& run);

}  // namespace isthmus::app
