// Too few members for a round in the warm-up, while others wait that cannot copy the state yet.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::HasSubstr;

/// Three trainers in the warm-up, of which rounds need two: one is evicted, and one leaves.
class LossInWarmup : public testing::Test {
 protected:
  static CoordinatorOptions options() {
    auto options = CoordinatorHarness::default_options(3);
    options.least = 2;
    options.warmup_rounds = 10;
    return options;
  }
  LossInWarmup() {
    run.run_all({"a", "b", "c"});
    beat(1, {{4, 1}, {4, 2}});
    run.receive(2, Evicted{"its rounds are not the run's"});
    run.seal_all({1, 3});
    run.receive(3, Leave{"asked to"});
    view = run.coordinator.view();
  }
  void beat(ConnectionId connection, std::vector<std::pair<Round, std::uint64_t>> fragments = {}) {
    Heartbeat beat;
    if (!fragments.empty()) beat.view = run.coordinator.view();
    beat.fragments = std::move(fragments);
    run.receive(connection, beat);
  }
  void come(ConnectionId connection, const std::string& name, std::uint64_t incarnation = 1,
            bool fresh = true) {
    auto hello = CoordinatorHarness::hello(name);
    hello.member.incarnation = incarnation;
    hello.fresh = fresh;
    hello.resume = incarnation > 1;
    run.receive(connection, hello);
  }
  /// a stays in the warm-up, and these wait.
  void pass(Time time, const std::vector<ConnectionId>& waiting, Round round = 4) {
    for (const auto end = run.now + time; run.now < end;) {
      run.tick(run.now + 1s);
      if (a_is_here) {
        Heartbeat beat;
        beat.view = view;
        beat.fragments = {{round, 1}, {round, 2}};
        run.receive(1, beat);
      }
      for (const auto connection : waiting) beat(connection);
    }
  }
  CoordinatorHarness run{options()};
  ViewNumber view = 0;
  bool a_is_here = true;
};

TEST_F(LossInWarmup, ItIsRepeatedByThoseThatAreHere) {
  come(4, "d");
  come(5, "e");
  pass(58s, {4, 5});
  EXPECT_EQ(run.count<Abort>(1), 0U) << "b or c may come back";
  EXPECT_THAT(run.last<Suspended>(4)->reason, HasSubstr("begins its warm-up again"));
  pass(5s, {4, 5});
  ASSERT_TRUE(run.last<Abort>(1)) << "its state cannot be copied, and it cannot continue alone";
  EXPECT_FALSE(run.last<Abort>(4) || run.last<Abort>(5)) << "they have only initial parameters";
  a_is_here = false;
  EXPECT_EQ(run.count<Seal>(4), 0U) << "three replicas are planned";
  come(6, "a", 2);
  for (const ConnectionId member : {4, 5, 6}) {
    ASSERT_TRUE(run.last<Seal>(member));
    EXPECT_EQ(run.last<Seal>(member)->resume_step, 0U);
  }
  run.seal_all({4, 5, 6});
  ASSERT_TRUE(run.last<NewView>(6));
  EXPECT_GT(run.last<NewView>(6)->view.number, view);
  EXPECT_EQ(run.last<NewView>(6)->reference, 0U) << "no rounds are left of the first attempt";
  EXPECT_NE(run.last<NewView>(6)->token, digest_of(99)) << "members left over from before are of another run";
  EXPECT_EQ(run.coordinator.participating(), 3U);
  EXPECT_FALSE(run.ended);
}

TEST_F(LossInWarmup, FewerRepeatItIfNoMoreCome) {
  come(4, "d");
  come(5, "e");
  pass(63s, {4, 5});
  ASSERT_TRUE(run.last<Abort>(1));
  a_is_here = false;
  pass(58s, {4, 5});
  EXPECT_EQ(run.count<Seal>(4), 0U) << "a may be started again";
  pass(5s, {4, 5});
  ASSERT_TRUE(run.last<Seal>(4) && run.last<Seal>(5));
  run.seal_all({4, 5});
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

/// b was evicted and asks for the state; no new process comes.
TEST_F(LossInWarmup, OneThatWasEvictedIsStartedAgainToo) {
  come(4, "b", 2, false);
  pass(63s, {4});
  ASSERT_TRUE(run.last<Abort>(1) && run.last<Abort>(4)) << "neither has initial parameters";
  a_is_here = false;
  come(5, "a", 2);
  come(6, "b", 3);
  EXPECT_EQ(run.count<Seal>(5), 0U) << "a third may come";
  pass(63s, {5, 6});
  ASSERT_TRUE(run.last<Seal>(5) && run.last<Seal>(6));
  EXPECT_EQ(run.last<Seal>(5)->resume_step, 0U);
  run.seal_all({5, 6});
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

TEST_F(LossInWarmup, OneThatComesBackInTimeContinuesIt) {
  come(4, "d");
  pass(30s, {4});
  auto back = CoordinatorHarness::hello("c");
  back.activated = back.sealed = view;
  back.token = digest_of(99);
  back.fresh = false;
  run.receive(5, back);
  ASSERT_TRUE(run.last<Seal>(5)) << "with a it has the run's state, and two are enough";
  pass(1s, {4, 5});
  EXPECT_EQ(run.count<Abort>(1), 0U);
}

TEST_F(LossInWarmup, OneWithTheStateAloneWaits) {
  pass(200s, {});
  EXPECT_EQ(run.count<Abort>(1), 0U) << "no one would be there to begin again with";
}

TEST_F(LossInWarmup, PastItTheStateIsCopied) {
  come(4, "d");
  EXPECT_FALSE(run.last<Admitted>(4));
  pass(100s, {4}, 10);
  EXPECT_EQ(run.count<Abort>(1), 0U);
  EXPECT_TRUE(run.last<Admitted>(4));
}

TEST_F(LossInWarmup, AMemberOfTheFirstAttemptIsLeftBehind) {
  come(4, "d");
  come(5, "e");
  pass(63s, {4, 5});
  a_is_here = false;
  come(6, "a", 2);
  run.seal_all({4, 5, 6});
  auto late = CoordinatorHarness::hello("c");
  late.activated = late.sealed = view;
  late.token = digest_of(99);
  late.fresh = false;
  run.receive(7, late);
  EXPECT_TRUE(run.last<Abort>(7) && run.closed.contains(7));
}

TEST_F(LossInWarmup, AStopEndsIt) {
  come(4, "d");
  pass(63s, {4});
  ASSERT_TRUE(run.last<Abort>(1));
  run.stop("enough");
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::stopped);
}

/// All had a checkpoint within the warm-up: no more is lost than since then.
TEST(LossInWarmupWithCheckpoints, ACompleteOneIsWhereItBegins) {
  auto options = CoordinatorHarness::default_options(2);
  options.least = 2;
  options.warmup_rounds = 10;
  CoordinatorHarness run(options);
  run.run_all({"a", "b"});
  Heartbeat beat;
  beat.view = 1;
  beat.fragments = {{6, 1}, {6, 2}};
  beat.checkpoints = {{5, 7}};
  run.receive(1, beat);
  run.receive(2, beat);
  run.receive(2, Evicted{"its rounds are not the run's"});
  auto hello = CoordinatorHarness::hello("b");
  hello.member.incarnation = 2;
  hello.fresh = false;
  run.receive(3, hello);
  for (int seconds = 0; seconds < 63; ++seconds) {
    run.tick(run.now + 1s);
    if (!run.last<Abort>(1)) run.receive(1, beat);
    run.receive(3, Heartbeat{});
  }
  ASSERT_TRUE(run.last<Abort>(1) && run.last<Abort>(3));
  for (const ConnectionId connection : {4, 5}) {
    auto again = CoordinatorHarness::hello(connection == 4 ? "a" : "b");
    again.member.incarnation = 3;
    again.resume = true;
    again.checkpoints = {{5, 7}};
    run.receive(connection, again);
  }
  ASSERT_TRUE(run.last<Seal>(4) && run.last<Seal>(5));
  EXPECT_EQ(run.last<Seal>(4)->resume_step, 5U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
