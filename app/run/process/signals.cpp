#include "run/process/signals.h"

#include <pthread.h>

#include <chrono>
#include <csignal>

namespace isthmus::app {
namespace {
constexpr int wake_signal = SIGUSR1;  // ends the waiting thread
constexpr std::chrono::seconds one_request{2};
}  // namespace

SignalThread::SignalThread(std::function<void(int, int)> on_signal) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, wake_signal}) sigaddset(&wanted, signal);
  pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the output may end; the work continues
  thread_ = std::thread([wanted, on_signal = std::move(on_signal)] {
    using Clock = std::chrono::steady_clock;
    int count = 0, last = 0;
    Clock::time_point last_at;
    for (;;) {
      int signal = 0;
      sigwait(&wanted, &signal);
      if (signal == wake_signal) return;
      const bool pressed_again = signal == SIGINT && last == SIGINT;
      if (count > 0 && !pressed_again && Clock::now() - last_at < one_request) continue;
      last = signal;
      last_at = Clock::now();
      on_signal(signal, ++count);
    }
  });
}

SignalThread::~SignalThread() {
  pthread_kill(thread_.native_handle(), wake_signal);
  thread_.join();
  // The signals stay blocked: the process is about to end by itself, and must not be killed before it has
  // reported why.
}

}  // namespace isthmus::app
