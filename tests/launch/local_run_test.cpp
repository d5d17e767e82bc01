// How a run of processes ends: by an interrupt, or because no process trains any more.

#include "launch/processes/local_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace isthmus::app {
namespace {

using namespace std::chrono_literals;

/// A process at a site as its link represents it: it ends after `needed` signals with `status`.
class Remote final : public RunProcess {
 public:
  Remote(std::string name, int needed, int status)
      : name_(std::move(name)), needed_(needed), status_(status) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::filesystem::path& log() const override { return log_; }
  void signal(int /*number*/) override { ++signals_; }
  [[nodiscard]] std::optional<int> poll() override {
    return signals_ >= needed_ ? std::optional(status_) : std::nullopt;
  }
  [[nodiscard]] int signals() const { return signals_; }

 private:
  std::string name_;
  std::filesystem::path log_;
  int needed_, status_, signals_ = 0;
};

class ProcessesOfARun final : public LocalRun {
 public:
  Remote& add(const std::string& name, int needed, int status) {
    auto process = std::make_unique<Remote>(name, needed, status);
    auto& added = *process;
    processes_.push_back(std::move(process));
    return added;
  }
  bool they_come_back = true;

  int end_by_itself() {
    coordinator_ends_within_ = 1s;
    const std::atomic<int> nobody = 0;
    return watch(nobody, 700ms);
  }
  int interrupted() {
    std::atomic<int> interrupts = 0;
    std::thread user([&] {
      std::this_thread::sleep_for(100ms);
      interrupts = 1;
    });
    const int status = watch(interrupts, 700ms);
    user.join();
    return status;
  }

 private:
  [[nodiscard]] bool elastic() const override { return true; }
  [[nodiscard]] bool will_restart(RunProcess& /*process*/) const override { return they_come_back; }
};

constexpr int stopped = 130, killed = 128 + SIGKILL;

TEST(Interrupted, AWorkerThatWaitedForItsRestartIsNoFailure) {
  ProcessesOfARun run;
  run.add("coordinator", 1, stopped);
  run.add("w1", 0, killed);  // had ended before the interrupt
  EXPECT_EQ(run.interrupted(), stopped);
}

TEST(Interrupted, AWorkerThatCannotEndAsAskedIs) {
  ProcessesOfARun run;
  run.add("coordinator", 1, stopped);
  run.add("w1", 1, 3);  // for example because it could not write a checkpoint
  EXPECT_EQ(run.interrupted(), 3);
}

/// A lost connection to a site also loses messages in flight, so signals are repeated.
TEST(Interrupted, WhatStillRunsIsKilledAgainAndAgain) {
  ProcessesOfARun run;
  run.add("coordinator", 1, stopped);
  auto& worker = run.add("w1", 3, killed);
  EXPECT_EQ(run.interrupted(), 1) << "one process had to be killed";
  EXPECT_EQ(worker.signals(), 3);
}

/// One replica was asked to leave and the other has no restarts left. The coordinator alone would wait for
/// others.
TEST(NobodyTrains, TheRunEndsWithTheStatusOfTheOneThatFailed) {
  ProcessesOfARun run;
  run.they_come_back = false;
  auto& coordinator = run.add("coordinator", 1, stopped);
  run.add("w1", 0, 0);
  run.add("w2", 0, 2);
  EXPECT_EQ(run.end_by_itself(), 2);
  EXPECT_EQ(coordinator.signals(), 1);
}

}  // namespace
}  // namespace isthmus::app
