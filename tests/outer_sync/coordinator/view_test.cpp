// Members that are lost, leave and come back, scene by scene. Committed rounds stay, others are made again,
// and a member with a different history copies the state from the others.

#include "cluster.h"
#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- losses ----

TEST(Views, SeveralWhoFallSilentTogetherAreOneChange) {
  CoordinatorHarness harness(4);
  harness.run_all({"a", "b", "c", "d"});
  harness.now = 3s;
  for (const ConnectionId here : {1, 2}) harness.receive(here, Heartbeat());
  const auto before = harness.count<Seal>(1);
  harness.tick(6s);
  EXPECT_EQ(harness.count<Seal>(1), before + 1);
  for (const auto* name : {"c", "d"})
    EXPECT_THAT(harness.said, testing::Contains(std::string(name) +
                                                " is lost: silent for longer than network.detect_timeout"));
  harness.tick(12s);  // the others do not answer
  EXPECT_EQ(harness.count<Seal>(1), before + 1) << "no member is left";
}

TEST(Views, ALostMemberIsLeftOutAndTheOthersGoOn) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(2);
  cluster.kill("c");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b")) << "at once, because its connection has closed";
  cluster.train(3);
  expect_equal(cluster, {"a", "b"}, 5);
  EXPECT_FALSE(cluster.ended);
}

TEST(Views, ContributionsThatWereSentBeforeAreSentAgain) {
  Cluster cluster({"a", "b", "c"});
  cluster.contribute({"a", "b"});
  EXPECT_EQ(cluster.round_of("a"), 0U) << "c has not contributed";
  cluster.kill("c");
  expect_equal(cluster, {"a", "b"}, 1);
  EXPECT_THAT(cluster.at("a").rounds.at(1).included, ElementsAre(true, true));
}

TEST(Views, AnOwnerDiesAfterItHasToldOneMember) {
  Cluster cluster({"a", "b", "c"});
  cluster.cut("a", "c");
  cluster.at("b").applies = false;
  cluster.train();
  ASSERT_TRUE(cluster.at("b").rounds.contains(1)) << "b has a's result";
  const auto made = *cluster.at("b").rounds.at(1).results[0];
  cluster.kill("a");
  cluster.apply("b");
  expect_equal(cluster, {"b", "c"}, 1);
  EXPECT_EQ(*cluster.at("c").rounds.at(1).results[0], made)
      << "the result is committed: b must pass it on, not make another";
  EXPECT_EQ(cluster.at("c").rounds.at(1).contributed, 2U)
      << "contributions of a lost member count, but belong to no member of the view";
}

/// Cuts member a off from all others when only a has all results of round 1: the result of chunk 0, which a
/// owns, has reached no other member; the result of chunk 1 came from b. The others continue.
void cut_a_off_after_round_1(Cluster& cluster) {
  cluster.contribute({"a"});
  for (const auto* other : {"b", "c"}) cluster.cut("a", other);
  cluster.contribute({"b", "c"});
  ASSERT_TRUE(cluster.at("a").rounds.contains(1));
  ASSERT_FALSE(cluster.at("b").rounds.contains(1) || cluster.at("c").rounds.contains(1));
  cluster.isolate("a");
  cluster.pass(2 * Cluster::detect_timeout);
  ASSERT_THAT(cluster.view(), ElementsAre("b", "c"));
  expect_equal(cluster, {"b", "c"}, 1);
  EXPECT_NE(*cluster.at("b").rounds.at(1).results[0], *cluster.at("a").rounds.at(1).results[0])
      << "no other member had the result, so it is made again without a";
  EXPECT_EQ(*cluster.at("b").rounds.at(1).results[1], *cluster.at("a").rounds.at(1).results[1])
      << "b had the result, so it is committed";
}

TEST(Views, AResultThatOnlyTheCutOffMemberHadIsWithdrawnFromIt) {
  Cluster cluster({"a", "b", "c"});
  cluster.at("a").applies = false;
  cut_a_off_after_round_1(cluster);
  cluster.at("a").applies = true;
  cluster.heal();
  cluster.reconnect("a");
  EXPECT_EQ(cluster.at("a").evicted, "") << "a had not applied the result";
  expect_equal(cluster, {"a", "b", "c"}, 1);
  EXPECT_THAT(cluster.at("a").rounds.at(1).included, ElementsAre(false, true))
      << "its contribution to chunk 0 must come back to it; the one to chunk 1 is in the result";
  cluster.train(3);
  expect_equal(cluster, {"a", "b", "c"}, 4);
}

TEST(Views, WhoHasAppliedWhatTheOthersMadeAgainTakesTheirState) {
  Cluster cluster({"a", "b", "c"});
  cut_a_off_after_round_1(cluster);
  ASSERT_EQ(cluster.round_of("a"), 1U);
  cluster.heal();
  cluster.reconnect("a");
  EXPECT_THAT(cluster.at("a").evicted, HasSubstr("its round 1 of fragment 0 is not one of the run's"));
  EXPECT_THAT(cluster.view(), ElementsAre("b", "c"));
  cluster.train(2);
  cluster.start("a");
  cluster.learn("a", "b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  cluster.train(2);
  expect_equal(cluster, {"a", "b", "c"}, 5);
}

TEST(Views, WhoAppliesMoreAfterItSealedFindsOutItself) {
  Cluster cluster({"a", "b", "c"});
  cluster.at("a").applies = false;
  cut_a_off_after_round_1(cluster);
  cluster.heal();
  cluster.lost = [](const std::string& to, const ControlMessage& message) {
    return to == "a" && std::holds_alternative<NewView>(message);
  };
  cluster.reconnect("a");  // it seals with round 0, which the run's history contains
  ASSERT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  cluster.apply("a");
  cluster.lost = [](auto&, auto&) { return false; };
  cluster.kill("c");
  EXPECT_THAT(cluster.at("a").evicted, HasSubstr("not one of the run's"));
  EXPECT_THAT(cluster.view(), ElementsAre("b"));
}

// ---- coming back ----

TEST(ComingBack, WithinTheRoundsThatAreKept) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(3);
  cluster.isolate("c");
  cluster.contribute({"a", "b", "c"});
  cluster.pass(2 * Cluster::detect_timeout);
  for (const auto* name : {"a", "b"}) EXPECT_EQ(cluster.round_of(name), 4U);
  cluster.contribute({"a", "b"});
  cluster.heal();
  cluster.reconnect("c");
  EXPECT_EQ(cluster.at("c").evicted, "");
  expect_equal(cluster, {"a", "b", "c"}, 3 + Member::always_kept);
  for (const auto round : {4, 5}) {
    EXPECT_THAT(cluster.at("c").rounds.at(round).included, ElementsAre(false, false))
        << "rounds made without a member must return its contributions";
  }
  cluster.train();
  expect_equal(cluster, {"a", "b", "c"}, 6);
  EXPECT_THAT(cluster.at("c").rounds.at(6).included, ElementsAre(true, true));
}

TEST(ComingBack, TooLateIsAsANewcomer) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(3);
  cluster.isolate("c");
  cluster.pass(2 * Cluster::detect_timeout);
  for (Round i = 0; i <= Member::always_kept; ++i) cluster.contribute({"a", "b"});
  cluster.pass(200ms);  // a and b learn that both have applied these rounds
  cluster.heal();
  cluster.reconnect("c");
  EXPECT_THAT(cluster.at("c").evicted, HasSubstr("no member holds the results of round 4 of fragment 0"));
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  cluster.start("c");
  cluster.learn("c", "a");
  expect_equal(cluster, {"a", "b", "c"}, 6);
}

TEST(ComingBack, StartedAgainBeforeItsOldConnectionWasSeenToEnd) {
  Cluster cluster({"a", "b"});
  cluster.train();
  cluster.start("b");  // without closing the old connection
  EXPECT_EQ(cluster.at("b").refused, "");
  EXPECT_THAT(cluster.view(), ElementsAre("a")) << "the old b is gone";

  cluster.train();
  cluster.learn("b", "a");
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 3);
}

TEST(ComingBack, WhatTheOldOneContributedIsNotTheNewOnes) {
  Cluster cluster({"a", "b", "c"});
  cluster.cut("c", "a");
  cluster.cut("b", "a");
  cluster.contribute({"c"});
  cluster.kill("c");
  cluster.start("c");
  cluster.learn("c", "a");
  cluster.heal();
  cluster.contribute({"a", "b", "c"});
  expect_equal(cluster, {"a", "b", "c"}, 1);
  EXPECT_THAT(cluster.at("c").rounds.at(1).included, ElementsAre(true, true));
}

TEST(ComingBack, FromAnotherRunOfThatNameIsRefused) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  auto stray = CoordinatorHarness::hello("eu-1");
  stray.activated = stray.sealed = 7;
  stray.token = digest_of(98);
  harness.receive(2, stray);
  EXPECT_THAT(harness.refusal(2), AllOf(HasSubstr("eu-1"), HasSubstr("another run called 'run-1'")));
  stray.token = digest_of(99);
  stray.sealed = UINT64_MAX;
  harness.receive(3, stray);
  EXPECT_THAT(harness.refusal(3), HasSubstr("the view it has sealed or begun is 18446744073709551615"));
  EXPECT_EQ(harness.coordinator.participating(), 1U) << "neither may touch the current view";
}

// ---- leaving, too few ----

TEST(Leaving, PolitelyCostsNoTime) {
  Cluster cluster({"a", "b", "c"});
  cluster.contribute({"a", "b"});
  cluster.say("c", Leave{"its machine is needed"});
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  EXPECT_TRUE(cluster.was_said("c left: its machine is needed"));
  expect_equal(cluster, {"a", "b"}, 1);
}

TEST(Leaving, TheLastOneDoesNotEndTheRunOfThoseWhoAreOnlyCutOff) {
  Cluster cluster({"a", "b", "c"}, 2);
  cluster.train();
  cluster.isolate("a");
  cluster.isolate("b");
  cluster.pass(2 * Cluster::detect_timeout);
  cluster.say("c", Leave{"asked to by a signal"});
  ASSERT_FALSE(cluster.ended);
  cluster.heal();
  cluster.reconnect("a");
  cluster.reconnect("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  cluster.contribute({"a", "b"});
  expect_equal(cluster, {"a", "b"}, 2);
}

TEST(Leaving, TheLastOneEndsTheRunIfTheOthersHaveLeft) {
  Cluster cluster({"a", "b"}, 1);
  cluster.kill("b");
  cluster.reconnect("b");
  cluster.say("b", Leave{"asked to by a signal"});
  EXPECT_FALSE(cluster.ended);
  cluster.say("a", Leave{"asked to by a signal"});
  EXPECT_TRUE(cluster.ended);
}

TEST(Leaving, BelowTheLeastRoundsDoNotCommit) {
  Cluster cluster({"a", "b", "c"}, 2);
  cluster.train();
  cluster.isolate("c");
  cluster.pass(2 * Cluster::detect_timeout);
  cluster.kill("b");
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("1 of at least 2 replicas are here"));
  cluster.contribute({"a"});
  EXPECT_EQ(cluster.round_of("a"), 1U);
  cluster.heal();
  cluster.reconnect("c");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "c"));
  cluster.contribute({"c"});
  expect_equal(cluster, {"a", "c"}, 2);
  EXPECT_FALSE(cluster.ended);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
