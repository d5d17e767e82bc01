// Some trainers of the last view never return: when the others go back to a checkpoint without them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::HasSubstr;

/// Trainers with a newest common checkpoint of step 200. All are killed, and some never come back.
class SomeNeverReturn : public testing::Test {
 protected:
  void begin(const std::vector<std::string>& names, Time checkpoint_interval = 600s, bool kill = true) {
    auto options = CoordinatorHarness::default_options(names.size());
    options.checkpoint_interval = checkpoint_interval;
    run.emplace(options);
    run->run_all(names);
    Heartbeat heartbeat;
    heartbeat.view = 1;
    heartbeat.checkpoints = {{100, 7}, {200, 8}};
    for (ConnectionId member = 1; member <= names.size(); ++member) run->receive(member, heartbeat);
    for (ConnectionId member = 1; kill && member <= names.size(); ++member) run->close(member);
  }
  void come(ConnectionId connection, const std::string& name, std::vector<CheckpointId> checkpoints) {
    auto hello = CoordinatorHarness::hello(name);
    hello.member.incarnation = 2;
    hello.resume = true;
    hello.checkpoints = std::move(checkpoints);
    run->receive(connection, hello);
  }
  /// Lets time pass while these connections send heartbeats; none of them may be closed.
  void pass(Time time, const std::vector<ConnectionId>& connections) {
    for (const auto end = run->now + time; run->now < end;) {
      run->tick(run->now + 1s);
      for (const auto connection : connections) run->receive(connection, Heartbeat{});
    }
  }
  static Hello cut_off(const std::string& name) {
    auto hello = CoordinatorHarness::hello(name);
    hello.activated = hello.sealed = 1;
    hello.fresh = false;
    hello.token = digest_of(99);
    return hello;
  }
  std::optional<CoordinatorHarness> run;
};

TEST_F(SomeNeverReturn, HalfOfThemGoBackAfterAsLongAsTheyCanLose) {
  begin({"a", "b"});
  come(3, "a", {{100, 7}, {200, 8}});
  pass(590s, {3});
  EXPECT_EQ(run->count<Seal>(3), 0U) << "b may have the run's state";
  EXPECT_THAT(run->coordinator.obstacle(),
              HasSubstr("the run goes back to its checkpoints after run.checkpoint_interval"));
  pass(15s, {3});
  ASSERT_TRUE(run->last<Seal>(3));
  EXPECT_EQ(run->last<Seal>(3)->resume_step, 200U);
  run->seal_all({3});
  EXPECT_EQ(run->coordinator.participating(), 1U);
  run->receive(4, cut_off("b"));
  EXPECT_TRUE(run->last<Abort>(4)) << "it must start again and copy the state from a";
}

TEST_F(SomeNeverReturn, OneThatComesBackWithTheStateInTimeIsTheRuns) {
  begin({"a", "b"});
  come(3, "a", {{100, 7}, {200, 8}});
  pass(590s, {3});
  run->receive(4, cut_off("b"));
  EXPECT_TRUE(run->last<Seal>(4));
  EXPECT_TRUE(run->last<Admitted>(3));
  pass(1s, {3, 4});
  EXPECT_FALSE(run->last<Seal>(3));
}

/// All were killed in their first view, the coordinator too.
TEST_F(SomeNeverReturn, TheCoordinatorsDiskKnowsWhichCheckpointAllHad) {
  begin({"a", "b"});
  ASSERT_TRUE(run->stored);
  EXPECT_EQ(run->stored->checkpoint, 200U);
  auto options = CoordinatorHarness::default_options(2);
  options.checkpoint_interval = 600s;
  options.last = run->stored;
  run.emplace(options);
  come(1, "a", {{100, 7}, {200, 8}});
  pass(600s, {1});
  EXPECT_EQ(run->count<Seal>(1), 0U);
  pass(15s, {1});
  ASSERT_TRUE(run->last<Seal>(1));
  EXPECT_EQ(run->last<Seal>(1)->resume_step, 200U);
}

/// The others may have continued with another coordinator.
TEST_F(SomeNeverReturn, FewerThanHalfWait) {
  begin({"a", "b", "c"});
  come(4, "a", {{100, 7}, {200, 8}});
  pass(1800s, {4});
  EXPECT_EQ(run->count<Seal>(4), 0U);
  come(5, "b", {{100, 7}, {200, 8}});
  ASSERT_TRUE(run->last<Seal>(4));
  EXPECT_EQ(run->last<Seal>(4)->resume_step, 200U);
}

/// a had joined the view just before, and its checkpoints are from before it was away.
TEST_F(SomeNeverReturn, OneWithOlderCheckpointsWaits) {
  begin({"a", "b"});
  come(3, "a", {{100, 7}});
  pass(1800s, {3});
  EXPECT_EQ(run->count<Seal>(3), 0U) << "100 steps that b has would be lost";
}

/// The last member with the state had begun to send it and is gone for good.
TEST_F(SomeNeverReturn, OneThatWaitsForTheStateInVainStartsAgain) {
  begin({"a", "b"});
  auto in_vain = cut_off("a");
  in_vain.activated = in_vain.sealed = 0;
  in_vain.member.incarnation = 2;
  in_vain.resume = true;
  run->receive(3, in_vain);
  pass(605s, {3});
  ASSERT_TRUE(run->last<Abort>(3));
  pass(4s, {});
  come(4, "a", {{100, 7}, {200, 8}});
  ASSERT_TRUE(run->last<Seal>(4)) << "the coordinator must not wait that long a second time";
  EXPECT_EQ(run->last<Seal>(4)->resume_step, 200U);
}

/// c's newest checkpoint is damaged.
TEST_F(SomeNeverReturn, OneWithoutTheNewestCheckpointDoesNotHoldTheOthersUp) {
  begin({"a", "b", "c", "d"});
  come(5, "a", {{100, 7}, {200, 8}});
  come(6, "b", {{100, 7}, {200, 8}});
  come(7, "c", {{100, 7}});
  pass(605s, {5, 6, 7});
  ASSERT_TRUE(run->last<Seal>(5) && run->last<Seal>(6));
  EXPECT_EQ(run->last<Seal>(5)->resume_step, 200U);
  EXPECT_FALSE(run->last<Seal>(7));
}

/// b is lost, and then a leaves: no member can have the state.
class TheLastOneHasLeft : public SomeNeverReturn {
 protected:
  void leave() {
    begin({"a", "b"}, 600s, false);
    run->close(2);
    run->seal_all({1});
    run->receive(1, Leave{"its disk is full"});
    EXPECT_FALSE(run->ended);
  }
};

TEST_F(TheLastOneHasLeft, OneThatComesBackGoesOnFromTheirCheckpoint) {
  leave();
  come(3, "b", {{100, 7}, {200, 8}});
  pass(59s, {3});
  EXPECT_EQ(run->count<Seal>(3), 0U) << "a may come back too";
  pass(3s, {3});
  ASSERT_TRUE(run->last<Seal>(3));
  EXPECT_EQ(run->last<Seal>(3)->resume_step, 200U);
}

TEST_F(TheLastOneHasLeft, OneThatComesBackWithoutItEndsTheRun) {
  leave();
  come(3, "b", {{100, 7}});
  pass(590s, {3});
  EXPECT_FALSE(run->ended) << "a may be started again";
  pass(15s, {3});
  ASSERT_TRUE(run->ended);
  EXPECT_EQ(run->ended->how, Ended::How::failed);
  EXPECT_THAT(run->ended->reason,
              HasSubstr("a left: its disk is full; start all replicas again, with --resume"));
}

TEST_F(TheLastOneHasLeft, AStopDoesNotHideWhy) {
  for (const bool before : {false, true}) {
    if (before) {
      begin({"a", "b"}, 600s, false);
      run->stop("enough");
      run->receive(2, Leave{"its disk is full"});
      run->receive(1, Leave{"its disk is full"});
      pass(2s, {});
    } else {
      leave();
      run->stop("by launch");
    }
    ASSERT_TRUE(run->ended);
    EXPECT_EQ(run->ended->how, Ended::How::failed);
    EXPECT_THAT(run->ended->reason, HasSubstr("a left: its disk is full"));
  }
}

/// The reducer r stays connected, but it has no state.
TEST_F(SomeNeverReturn, OneThatOnlyReducesIsNobodyToWaitFor) {
  begin({"a", "b"}, 600s, false);
  auto reducer = CoordinatorHarness::hello("r");
  reducer.member.kind = MemberKind::reducer;
  reducer.model = reducer.tokenizer = {};
  run->receive(3, reducer);
  run->receive(3, Ready{});
  run->seal_all({1, 2});
  Sealed blank;
  blank.view = run->last<Seal>(3)->view;
  run->receive(3, blank);
  ASSERT_EQ(run->last<NewView>(3)->view.members.size(), 3U);
  run->close(1);
  run->close(2);
  come(4, "a", {{100, 7}, {200, 8}});
  pass(590s, {3, 4});
  EXPECT_EQ(run->count<Seal>(4), 0U) << "b may have the run's state";
  pass(15s, {3, 4});
  ASSERT_TRUE(run->last<Seal>(4)) << "it must go back to its checkpoint";
  EXPECT_EQ(run->last<Seal>(4)->resume_step, 200U);
}

TEST_F(SomeNeverReturn, WithoutTimedCheckpointsTheyWait) {
  begin({"a", "b"}, 0s);
  come(3, "a", {{100, 7}, {200, 8}});
  pass(1800s, {3});
  EXPECT_EQ(run->count<Seal>(3), 0U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
