// Newcomers in mid-run, from their admission to their first view.

#include "cluster.h"
#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Newcomers, OneThatIsReadyWhileAChangeIsUnderWay) {
  Cluster cluster({"a", "b", "c"});
  cluster.train();
  cluster.start("d");
  cluster.lost = [](const std::string& to, const ControlMessage& message) {
    return to == "b" && std::holds_alternative<Seal>(message);
  };
  cluster.kill("c");
  EXPECT_THAT(cluster.view(), IsEmpty()) << "b has not answered";
  cluster.lost = [](auto&, auto&) { return false; };
  const auto number = cluster.coordinator().view();
  cluster.learn("d", "a");
  EXPECT_EQ(cluster.coordinator().view(), number + 1) << "the view change must start again, with d";
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "d"));
  cluster.train(2);
  expect_equal(cluster, {"a", "b", "d"}, 3);
}

TEST(Newcomers, WaitForTheWarmupToEnd) {
  auto options = CoordinatorHarness::default_options(1);
  options.warmup_rounds = 5;
  CoordinatorHarness harness(options);
  harness.run_all({"us-1"});
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  Heartbeat beat;
  beat.view = 1;
  beat.fragments = {{5, 1}, {4, 1}};
  harness.receive(1, beat);
  EXPECT_FALSE(harness.last<Admitted>(2)) << "fragment 1 is in the warm-up";
  harness.receive(2, Ready{});
  EXPECT_EQ(harness.count<Seal>(2), 0U) << "it has no state to be ready with";
  beat.fragments = {{5, 1}, {5, 2}};
  harness.receive(1, beat);
  ASSERT_TRUE(harness.last<Admitted>(2));
  EXPECT_EQ(harness.last<Admitted>(2)->donors.at(0).name, "us-1");
  harness.receive(2, Ready{});
  EXPECT_EQ(harness.last<Seal>(2)->view, 2U);
}

TEST(Newcomers, WhoWasNotAskedIsNotInTheView) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  harness.receive(3, CoordinatorHarness::hello("asia-1"));
  harness.receive(2, Ready{});
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = 2;
  harness.receive(3, sealed);
  sealed.activated = 1;
  harness.receive(1, sealed);
  sealed.activated = 0;
  harness.receive(2, sealed);
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U) << "asia-1 has no state yet";
}

TEST(Newcomers, WhatTheyNeedIsKeptUntilTheyAreIn) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  const Heartbeat at_nine{
      .number = 1, .view = 1, .unreachable = {}, .fragments = {{9, 1}, {9, 1}}, .health = {}};
  harness.receive(1, at_nine);
  harness.receive(2, at_nine);
  EXPECT_THAT(harness.last<HeartbeatReply>(2)->lowest, testing::ElementsAre(9, 9));
  harness.receive(3, CoordinatorHarness::hello("asia-1"));
  harness.receive(2, at_nine);
  EXPECT_THAT(harness.last<HeartbeatReply>(2)->lowest, testing::ElementsAre(0, 0));
  harness.close(3);
  harness.receive(2, at_nine);
  EXPECT_THAT(harness.last<HeartbeatReply>(2)->lowest, testing::ElementsAre(9, 9));
}

/// Two members run. r was ready for three views and was lost each time before the view began.
void miss_three_views(CoordinatorHarness& harness) {
  harness.run_all({"a", "b"});
  auto hello = CoordinatorHarness::hello("r");
  for (ConnectionId connection = 3; connection < 6; ++connection) {
    ++hello.member.incarnation;
    harness.receive(connection, hello);
    ASSERT_EQ(harness.last<Seal>(1)->view, harness.last<NewView>(1)->view.number)
        << "the rounds must not wait for r yet";
    harness.receive(connection, Ready{});
    harness.close(connection);
    harness.seal_all({1, 2});
  }
  ++hello.member.incarnation;
  harness.receive(6, hello);
  EXPECT_GT(harness.last<Seal>(1)->view, harness.last<NewView>(1)->view.number)
      << "the rounds must wait for r now";
}

TEST(Newcomers, TheRoundsWaitForOneThatMissesViewAfterView) {
  CoordinatorHarness harness(2);
  miss_three_views(harness);
  const auto before = harness.last<NewView>(1)->view.number;
  harness.seal_all({1, 2});
  EXPECT_EQ(harness.last<NewView>(1)->view.number, before) << "both have sealed, but r has not come";
  harness.receive(1,
                  Heartbeat{.number = 1, .view = before, .unreachable = {}, .fragments = {{7, 1}, {7, 1}}});
  harness.receive(6, Heartbeat{.number = 1, .unreachable = {}, .fragments = {}});
  EXPECT_THAT(harness.last<HeartbeatReply>(6)->newest, testing::ElementsAre(7U, 7U))
      << "the rounds it has to reach";
  harness.receive(6, Ready{});
  harness.seal_all({1, 2, 6});
  EXPECT_EQ(harness.last<NewView>(6)->view.members.size(), 3U);
}

TEST(Newcomers, TheRoundsDoNotWaitForEver) {
  CoordinatorHarness harness(2);
  miss_three_views(harness);
  const auto before = harness.last<NewView>(1)->view.number;
  harness.seal_all({1, 2});
  for (int i = 1; i <= 6; ++i) {
    for (const ConnectionId who : {1, 2, 6})
      harness.receive(who, Heartbeat{.unreachable = {}, .fragments = {}});
    harness.tick(i * 1s);
  }
  EXPECT_GT(harness.last<NewView>(1)->view.number, before);
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
