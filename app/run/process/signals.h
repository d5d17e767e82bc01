#pragma once
// Ctrl-C without global state: the signals are blocked in every thread, and one thread waits for them.

#include <functional>
#include <thread>

namespace isthmus::app {

/// Create it before any other thread, so that all threads inherit the blocked mask, which stays until the
/// process ends.
class SignalThread {
 public:
  /// `on_signal(signal, count)` runs on the waiting thread for the first, second, ... SIGINT or SIGTERM. A
  /// signal within 2 s of another is the same request, unless both are Ctrl-C: at a shutdown systemd signals
  /// all processes, and launchers and agents pass the signal on to theirs.
  explicit SignalThread(std::function<void(int signal, int count)> on_signal);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::thread thread_;
};

}  // namespace isthmus::app
