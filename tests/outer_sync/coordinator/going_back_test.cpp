// All trainers of the last view were started again: the run goes back to a checkpoint that all have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// Two trainers in view 1, which are killed and come back.
class AllStartedAgain : public testing::Test {
 protected:
  AllStartedAgain() { run.run_all({"a", "b"}); }
  void kill_both() {
    run.close(1);
    run.close(2);
  }
  void come(ConnectionId connection, const std::string& name, std::uint64_t incarnation,
            std::vector<CheckpointId> checkpoints, bool resume = true) {
    auto hello = CoordinatorHarness::hello(name);
    hello.member.incarnation = incarnation;
    hello.resume = resume;
    hello.checkpoints = std::move(checkpoints);
    run.receive(connection, hello);
  }
  /// Lets time pass while all of these connections send heartbeats.
  void pass(Time time, const std::vector<ConnectionId>& connections) {
    for (const auto end = run.now + time; run.now < end;) {
      run.tick(run.now + 1s);
      for (const auto connection : connections) run.receive(connection, Heartbeat{});
    }
  }
  CoordinatorHarness run{CoordinatorHarness::default_options(2)};
};

TEST_F(AllStartedAgain, TheyGoBackToTheNewestCheckpointThatAllHave) {
  kill_both();
  come(3, "a", 2, {{100, 7}, {120, 8}});
  EXPECT_EQ(run.count<Seal>(3), 0U) << "b may still have the run's state";
  come(4, "b", 2, {{100, 7}, {120, 9}});
  for (const ConnectionId member : {3, 4}) {
    ASSERT_TRUE(run.last<Seal>(member));
    EXPECT_EQ(run.last<Seal>(member)->resume_step, 100U) << "their checkpoints of step 120 differ";
  }
  run.seal_all({3, 4});
  ASSERT_TRUE(run.last<NewView>(3));
  EXPECT_GT(run.last<NewView>(3)->view.number, 1U);
  EXPECT_NE(run.last<NewView>(3)->token, digest_of(99))
      << "members left over from before must be in another run";
  EXPECT_EQ(run.coordinator.participating(), 2U);
  auto old = CoordinatorHarness::hello("c");
  old.activated = old.sealed = 1;
  old.token = digest_of(99);
  run.receive(5, old);
  EXPECT_TRUE(run.closed.contains(5));
}

/// b was admitted while a had the state; a is killed before it has sent it.
TEST_F(AllStartedAgain, OneThatTakesTheStateOfOneThatIsGoneStartsAgainToo) {
  run.close(2);
  run.seal_all({1});
  come(3, "b", 2, {{100, 7}});
  ASSERT_TRUE(run.last<Admitted>(3));
  run.close(1);
  come(4, "a", 2, {{100, 7}});
  EXPECT_TRUE(run.last<Abort>(3)) << "it has no donor left";
  EXPECT_TRUE(run.closed.contains(3));
  EXPECT_FALSE(run.ended);
  come(5, "b", 3, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(5));
  EXPECT_EQ(run.last<Seal>(5)->resume_step, 100U);
}

/// b has noticed that its donor is gone, and dials the coordinator again before the donor is back.
TEST_F(AllStartedAgain, OneThatWaitsForTheStateInVainStartsAgainToo) {
  run.close(2);
  run.seal_all({1});
  come(3, "b", 2, {{100, 7}});
  run.close(1);
  run.close(3);
  auto again = CoordinatorHarness::hello("b");
  again.member.incarnation = 2;
  again.resume = true;
  again.fresh = false;
  run.receive(4, again);
  come(5, "a", 2, {{100, 7}});
  EXPECT_TRUE(run.last<Abort>(4)) << "it would wait for ever, and so would the others";
  come(6, "b", 3, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(6));
  EXPECT_EQ(run.last<Seal>(6)->resume_step, 100U);
}

/// b has copied the state and has not answered the Seal of its first view when the last member with the state
/// dies.
TEST_F(AllStartedAgain, OneThatIsReadyStartsAgainToo) {
  run.close(2);
  run.seal_all({1});
  come(3, "b", 2, {{100, 7}});
  run.receive(3, Ready{});
  ASSERT_TRUE(run.last<Seal>(3)) << "it is to be in the next view";
  run.close(1);
  come(4, "a", 2, {{100, 7}});
  EXPECT_TRUE(run.last<Abort>(3)) << "that view has begun at no member";
  come(5, "b", 3, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(5));
  EXPECT_EQ(run.last<Seal>(5)->resume_step, 100U);
}

TEST_F(AllStartedAgain, WhoIsOfAnOlderViewStartsAgainWhenTheRunHasGoneBack) {
  kill_both();
  come(3, "a", 2, {{100, 7}});
  come(4, "b", 2, {{100, 7}});
  run.seal_all({3, 4});
  auto old = CoordinatorHarness::hello("c");
  old.activated = old.sealed = 1;
  old.fresh = false;
  old.token = digest_of(99);
  run.receive(5, old);
  EXPECT_TRUE(run.last<Abort>(5) && run.closed.contains(5)) << "it has to be started again";
}

/// The other member has left for good.
TEST_F(AllStartedAgain, FewerGoBackWhenTheOthersHaveNotComeForAWhile) {
  run.receive(2, Leave{"asked to"});
  run.seal_all({1});
  run.close(1);
  come(3, "a", 2, {{100, 7}});
  EXPECT_EQ(run.count<Seal>(3), 0U) << "the run was planned with two replicas";
  pass(62s, {3});
  ASSERT_TRUE(run.last<Seal>(3));
  EXPECT_EQ(run.last<Seal>(3)->resume_step, 100U);
  run.seal_all({3});
  EXPECT_EQ(run.coordinator.participating(), 1U);
}

TEST_F(AllStartedAgain, AStopEndsTheRunAtOnce) {
  kill_both();
  come(3, "a", 2, {{100, 7}});
  pass(61s, {3});  // b may come back during this time
  EXPECT_FALSE(run.ended);
  run.stop("enough");
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::stopped);
}

TEST_F(AllStartedAgain, OneWithoutCheckpointsComesInWhenTheRunGoesOn) {
  kill_both();
  come(3, "c", 1, {}, false);
  come(4, "a", 2, {{100, 7}});
  come(5, "b", 2, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(4) && run.last<Seal>(5));
  EXPECT_TRUE(run.closed.contains(3)) << "it must ask again";
  come(6, "c", 1, {}, false);
  EXPECT_TRUE(run.closed.contains(6) && run.refusal(6).empty());
  run.seal_all({4, 5});
  Heartbeat in_view;
  in_view.view = run.coordinator.view();
  run.receive(4, in_view);
  come(7, "c", 1, {}, false);
  EXPECT_TRUE(run.last<Admitted>(7));
}

TEST_F(AllStartedAgain, AStopDoesNotWaitForOneThatMayReturn) {
  kill_both();
  come(3, "a", 2, {}, false);
  come(4, "b", 2, {}, false);
  run.stop("enough");
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(run.ended->how, Ended::How::stopped);
}

/// A run of many days must not start from its initial parameters because the operator forgot --resume.
TEST_F(AllStartedAgain, WithoutResumeTheyWait) {
  kill_both();
  come(3, "a", 2, {}, false);
  come(4, "b", 2, {}, false);
  pass(2s, {3, 4});
  EXPECT_EQ(run.count<Seal>(3) + run.count<Seal>(4), 0U);
  ASSERT_TRUE(run.last<Suspended>(4));
  EXPECT_THAT(run.last<Suspended>(4)->reason,
              testing::AllOf(HasSubstr("goes back to its checkpoints"), HasSubstr("start again: a b")));
  for (ConnectionId member : {3, 4}) run.close(member);
  come(5, "a", 3, {{100, 7}});
  come(6, "b", 3, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(6));
  EXPECT_EQ(run.last<Seal>(6)->resume_step, 100U);
}

/// b was away while a trained alone, so b's checkpoints are old.
TEST_F(AllStartedAgain, OneThatWasAwayDoesNotTakeTheOthersBack) {
  for (const bool coordinator_too : {false, true}) {
    CoordinatorHarness first(CoordinatorHarness::default_options(2));
    first.run_all({"a", "b"});
    first.close(2);
    first.seal_all({1});
    Heartbeat alone;
    alone.view = first.coordinator.view();
    alone.checkpoints = {{900, 8}, {1000, 9}};
    first.receive(1, alone);
    const auto hello = [](const std::string& name, std::uint64_t incarnation,
                          std::vector<CheckpointId> theirs) {
      auto own = CoordinatorHarness::hello(name);
      own.member.incarnation = incarnation;
      own.resume = true;
      own.checkpoints = std::move(theirs);
      return own;
    };
    first.receive(3, hello("b", 2, {{90, 6}, {100, 7}}));
    first.receive(3, Ready{});
    first.seal_all({1, 3});
    ASSERT_EQ(first.coordinator.participating(), 2U);
    auto options = CoordinatorHarness::default_options(2);
    options.last = first.stored;
    CoordinatorHarness after(options);
    auto& harness = coordinator_too ? after : first;
    if (!coordinator_too) {
      first.close(1);
      first.close(3);
    }
    harness.receive(4, hello("a", 2, {{100, 7}, {900, 8}, {1000, 9}}));
    harness.receive(5, hello("b", 3, {{90, 6}, {100, 7}}));
    ASSERT_TRUE(harness.last<Seal>(4));
    EXPECT_EQ(harness.last<Seal>(4)->resume_step, 1000U);
    EXPECT_FALSE(harness.last<Seal>(5));
    EXPECT_THAT(harness.said,
                Contains(HasSubstr("b lacks the checkpoint of step 1000: it copies the state")));
    EXPECT_TRUE(harness.closed.contains(5) && harness.refusal(5).empty()) << "it must ask again";
    harness.receive(6, hello("b", 3, {{90, 6}, {100, 7}}));
    EXPECT_TRUE(harness.closed.contains(6) && harness.refusal(6).empty());
    harness.seal_all({4});
    EXPECT_EQ(harness.coordinator.participating(), 1U);
    Heartbeat in_view;
    in_view.view = harness.coordinator.view();
    harness.receive(4, in_view);
    harness.receive(7, hello("b", 3, {{90, 6}, {100, 7}}));
    EXPECT_TRUE(harness.last<Admitted>(7));
  }
}

/// The disks are not equally fast, and one member was killed while writing.
TEST_F(AllStartedAgain, OneThatWasThereAllTheTimeIsNotLeftOut) {
  Heartbeat both_have;
  both_have.view = 1;
  both_have.checkpoints = {{100, 7}};
  for (const ConnectionId member : {1, 2}) run.receive(member, both_have);
  kill_both();
  come(3, "a", 2, {{100, 7}, {101, 8}, {102, 9}, {103, 10}});
  come(4, "b", 2, {{99, 6}, {100, 7}});
  for (const ConnectionId member : {3, 4}) {
    ASSERT_TRUE(run.last<Seal>(member));
    EXPECT_EQ(run.last<Seal>(member)->resume_step, 100U);
  }
}

/// a has restored the checkpoint of step 100, b's newest, when c comes instead of b.
TEST_F(AllStartedAgain, TheCheckpointStaysTheSameWhoeverComes) {
  kill_both();
  come(3, "a", 2, {{100, 7}, {200, 8}});
  come(4, "b", 2, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(3));
  ASSERT_EQ(run.last<Seal>(3)->resume_step, 100U);
  run.close(4);
  come(5, "c", 1, {{90, 6}});
  EXPECT_TRUE(run.closed.contains(5)) << "it joins when the run continues";
  come(6, "d", 1, {{100, 7}, {200, 8}});
  EXPECT_FALSE(run.last<Abort>(3));
  ASSERT_TRUE(run.last<Seal>(6));
  EXPECT_EQ(run.last<Seal>(6)->resume_step, 100U);
  run.seal_all({3, 6});
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

/// b's newest checkpoint is from before it was away. a, which has the newest of all, dies while restoring it.
TEST_F(AllStartedAgain, NobodyGoesFurtherBackWhenOneDiesOnTheWay) {
  run.close(2);
  run.seal_all({1});
  Heartbeat alone;
  alone.view = run.coordinator.view();
  alone.checkpoints = {{900, 8}, {1000, 9}};
  run.receive(1, alone);
  come(3, "b", 2, {{100, 7}});
  run.receive(3, Ready{});
  run.seal_all({1, 3});
  run.close(1);
  run.close(3);
  come(4, "a", 2, {{900, 8}, {1000, 9}});
  come(5, "b", 3, {{100, 7}});
  ASSERT_TRUE(run.last<Seal>(4));
  run.close(4);
  for (ConnectionId poll = 6; poll < 60; ++poll) {
    pass(1s, {});
    come(poll, "b", 3, {{100, 7}});
    EXPECT_FALSE(run.last<Seal>(poll));
  }
  come(60, "a", 3, {{900, 8}, {1000, 9}});
  ASSERT_TRUE(run.last<Seal>(60));
  EXPECT_EQ(run.last<Seal>(60)->resume_step, 1000U);
}

/// The process for which b's place was kept has died between going back and the first view.
TEST_F(AllStartedAgain, OneThatDiesOnTheWayBackIsNotWaitedForWithoutLimit) {
  kill_both();
  come(3, "a", 2, {{100, 7}});
  come(4, "b", 2, {{100, 7}});
  run.close(4);
  run.seal_all({3});
  EXPECT_EQ(run.coordinator.participating(), 0U);
  pass(59s, {3});
  EXPECT_EQ(run.count<Seal>(3), 1U);
  pass(3s, {3});
  ASSERT_EQ(run.count<Seal>(3), 2U);
  run.seal_all({3});
  EXPECT_EQ(run.coordinator.participating(), 1U);
  EXPECT_FALSE(run.ended);
}

TEST_F(AllStartedAgain, WhenNobodyIsLeftOnTheWayBackItWaitsForThem) {
  kill_both();
  come(3, "a", 2, {{100, 7}});
  come(4, "b", 2, {{100, 7}});
  run.close(3);
  pass(55s, {4});
  run.close(4);
  pass(600s, {});
  EXPECT_FALSE(run.ended);
  come(5, "a", 3, {{100, 7}});
  come(6, "b", 3, {{100, 7}});
  EXPECT_TRUE(run.last<Seal>(5) && run.last<Seal>(6));
}

TEST_F(AllStartedAgain, APausedRunStaysPaused) {
  Command pause;
  pause.run = "run-1";
  pause.by = "operator";
  pause.verb = "pause";
  run.receive(9, pause);
  run.seal_all({1, 2});
  ASSERT_NE(run.last<NewView>(1)->settings.pause_after, Settings::never);
  kill_both();
  come(3, "a", 2, {{100, 7}});
  come(4, "b", 2, {{100, 7}});
  run.seal_all({3, 4});
  ASSERT_TRUE(run.last<NewView>(3));
  EXPECT_EQ(run.last<NewView>(3)->settings.pause_after, 100U)
      << "the run must stay paused at the step that it goes back to";
}

/// A member that was cut off comes back to a coordinator that was restarted after the run had gone back.
TEST_F(AllStartedAgain, ACoordinatorThatComesAfterKnowsWhoIsLeftBehind) {
  kill_both();
  come(3, "a", 2, {{100, 7}});
  come(4, "b", 2, {{100, 7}});
  run.seal_all({3, 4});
  ASSERT_TRUE(run.stored);
  auto options = CoordinatorHarness::default_options(2);
  options.last = run.stored;
  CoordinatorHarness next(options);
  auto old = CoordinatorHarness::hello("c");
  old.activated = old.sealed = 1;
  old.fresh = false;
  old.token = digest_of(99);
  next.receive(1, old);
  EXPECT_TRUE(next.last<Abort>(1) && next.closed.contains(1))
      << "it must be restarted and copy the others' state";
  EXPECT_EQ(next.refusal(1), "");
  old.token = digest_of(98);
  next.receive(2, old);
  EXPECT_THAT(next.refusal(2), HasSubstr("has been in another run")) << "it was never in this run";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
