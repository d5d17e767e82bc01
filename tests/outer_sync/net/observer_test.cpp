// Observers over real sockets: they end with the run's global parameters, and the run does not notice them.

#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <thread>

#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

/// An observer, run on the caller's thread.
class Watcher {
 public:
  explicit Watcher(NetworkRun& run, std::size_t number = 9) : run_(run), number_(number) {}

  /// Follows until the run ends, or until all fragments are here and `enough`, given the number of state
  /// events so far, returns true.
  void watch(const std::function<bool(std::size_t)>& enough) {
    Trace trace;
    MemberNode node(run_.network(number_), run_.layout(), run_.codecs(), {}, trace);
    auto hello = run_.hello(number_);
    hello.member.kind = protocol::MemberKind::observer;
    EXPECT_EQ(node.join(hello).how, Admission::How::joins);
    PlainParameters local(std::vector<float>(run_.layout().buffer_size()));
    OuterLoop loop(run_.outer(), run_.layout(), local, node, trace);
    const std::vector<protocol::Round> all(run_.layout().fragment_count(),
                                           std::numeric_limits<protocol::Round>::max());
    auto seen = node.follow(loop, all);
    for (; seen.goes_on; seen = node.follow(loop, all)) {
      ++state_events;
      if (seen.has_state && enough(state_events)) return;
    }
    has_state = seen.has_state;
    hash = loop.global_hash();
    finished = node.status().finished;
  }

  std::size_t state_events = 0;
  bool has_state = false;
  Digest hash;
  std::optional<protocol::Finished> finished;

 private:
  NetworkRun& run_;
  std::size_t number_;
};

/// A run of two or three trainers that ends 20 steps after an observer has followed for a while.
class Observed : public testing::Test {
 protected:
  static constexpr std::size_t a_while = 12;  // in state events

  /// Call it in `before_step`: lets member 1 end the run.
  void end_when_followed(NetworkRun& run, std::size_t m, std::uint64_t step) {
    if (m == 1 && followed && run.last_step == for_ever) run.last_step = step + 20;
  }
  /// Follows until the run ends.
  void watch(Watcher& watcher) {
    watcher.watch([this](std::size_t state_events) {
      if (state_events >= a_while) followed = true;
      return false;
    });
  }
  static void expect_the_runs_parameters(const Watcher& watcher, const NetworkRun& run) {
    ASSERT_TRUE(watcher.finished);
    EXPECT_TRUE(watcher.has_state);
    EXPECT_EQ(watcher.hash.hex(), run.result(1).hash.hex());
    EXPECT_EQ(watcher.finished->global_hash.hex(), run.result(1).hash.hex());
  }

  std::atomic<bool> followed = false;
};

TEST_F(Observed, EndsWithTheRunsParameters) {
  NetworkRun run(NetworkRun::Options::lively(2));
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) { end_when_followed(run, m, step); };
  Watcher watcher(run);
  run.start();
  watch(watcher);
  run.expect_one_end({0, 1});
  expect_the_runs_parameters(watcher, run);
  EXPECT_EQ(run.times_said("begins with"), 1U) << "an observer must not cause a new view";
}

TEST_F(Observed, OneThatVanishesCostsNobodyAnything) {
  NetworkRun run(NetworkRun::Options::lively(2));
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) { end_when_followed(run, m, step); };
  run.start();
  Watcher(run).watch([](std::size_t state_events) { return state_events >= a_while; });
  run.wait_until_said("r9 has stopped observing: its connection closed");
  followed = true;
  run.expect_one_end({0, 1});
  EXPECT_EQ(run.times_said("begins with"), 1U);
}

TEST_F(Observed, GoesOnWithTheDonorsOfTheNextView) {
  NetworkRun run(NetworkRun::Options::lively(3));
  std::atomic<bool> gone = false;
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && followed) {
      gone = true;
      throw NetworkRun::Vanish();
    }
    if (gone) end_when_followed(run, m, step);
  };
  Watcher watcher(run);
  run.start();
  watch(watcher);
  run.expect_one_end({1, 2});
  expect_the_runs_parameters(watcher, run);
}

TEST_F(Observed, OutlivesTheCoordinator) {
  NetworkRun run(NetworkRun::Options::lively(2));
  std::atomic<bool> back = false;
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (back) end_when_followed(run, m, step);
  };
  Watcher watcher(run);
  run.start();
  std::thread following([&] { watch(watcher); });
  run.wait_until_said("r9 observes the run");
  run.kill_coordinator();
  run.start_coordinator_again(run.stored());
  run.wait_until_said("r9 observes the run", 2);
  back = true;
  following.join();
  run.expect_one_end({0, 1});
  expect_the_runs_parameters(watcher, run);
}

}  // namespace
}  // namespace isthmus::outer_sync
