// Members that come and go, scene by scene. Committed rounds stay, others are made again, and a member
// with a different history copies the state from the others.

#include "cluster.h"
#include "coordinator_support.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/view_change.h"

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

// ---- joining in mid-run ----

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

// ---- quorum ----

const ClosingRule two_of_three{.least = 2, .quorum = 2, .grace = 300ms};

TEST(Quorums, ALateContributionIsLeftOutAndComesBack) {
  Cluster cluster({"a", "b", "c"}, 2, two_of_three);
  cluster.pass(200ms);  // to get a lease
  cluster.contribute({"a", "b"});
  cluster.pass(200ms);
  EXPECT_EQ(cluster.round_of("a"), 0U) << "c must get its grace time";
  cluster.pass(400ms);
  expect_equal(cluster, {"a", "b", "c"}, 1);
  EXPECT_THAT(cluster.at("a").rounds.at(1).included, ElementsAre(true, true));
  EXPECT_THAT(cluster.at("c").rounds.at(1).included, ElementsAre(false, false));
  EXPECT_EQ(cluster.at("c").rounds.at(1).contributed, 2U);
}

TEST(Quorums, AHubThatIsCutOffFromTheCoordinatorDoesNotGoOnAlone) {
  Cluster cluster({"a", "b", "c"}, 1, {.least = 1, .quorum = 1, .grace = 100ms});
  cluster.pass(200ms);
  for (const auto* other : {"b", "c"}) {
    cluster.cut("a", other);
    cluster.cut(other, "a");
  }
  cluster.cut("a", "coordinator");
  cluster.cut("coordinator", "a");
  const auto lone = cluster.round_of("a");
  cluster.pass(Cluster::detect_timeout + 200ms);  // its lease ends
  cluster.contribute({"a"});
  cluster.pass(5 * Cluster::detect_timeout);
  EXPECT_EQ(cluster.round_of("a"), lone) << "without a lease, no round may close by quorum";
  cluster.contribute({"b", "c"});
  expect_equal(cluster, {"b", "c"}, 1);
  cluster.heal();
  cluster.reconnect("a");
  EXPECT_EQ(cluster.at("a").evicted, "");
  expect_equal(cluster, {"a", "b", "c"}, 1);
}

TEST(Quorums, NoViewBeginsWhileSomebodyElsesLeaseLasts) {
  Cluster cluster({"a", "b"}, 1, {.least = 1, .quorum = 1, .grace = 100ms});
  cluster.pass(200ms);
  cluster.kill("b");
  EXPECT_THAT(cluster.view(), IsEmpty()) << "b may only have lost its connection and still close chunks";
  cluster.pass(Cluster::detect_timeout + 100ms);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
}

TEST(Quorums, WhoFallsBehindIsTakenOut) {
  Cluster cluster({"a", "b", "c"}, 2, two_of_three);
  cluster.at("c").applies = false;
  for (Round round = 1; round <= Member::max_lag + 1; ++round) {
    cluster.pass(200ms);
    cluster.contribute({"a", "b"});
    cluster.pass(400ms);
    ASSERT_EQ(cluster.round_of("a"), round);
  }
  EXPECT_EQ(cluster.at("c").evicted, "") << "its reports may only be delayed";
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.at("c").evicted, HasSubstr("it is at round 0 of fragment 0, the others are at 3"));
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
}

TEST(Quorums, ReportsThatAreOldByManyRoundsAreNoLag) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  for (Round round = 20; round <= 200; round += 20) {  // in a warm-up every step is a round
    harness.now += 500ms;
    for (const ConnectionId member : {1, 2}) {
      Heartbeat beat;
      beat.view = 1;
      const auto reported = member == 1 ? round : round - 10;
      beat.fragments = {{reported, reported}, {reported, reported}};
      harness.receive(member, beat);
    }
  }
  EXPECT_EQ(harness.coordinator.participating(), 2U);
  EXPECT_EQ(harness.last<HeartbeatReply>(2)->lowest.at(0), 190U);
  EXPECT_EQ(harness.last<HeartbeatReply>(2)->newest.at(0), 200U);
}

// ---- members without a path to each other ----

/// Sends heartbeats of members 1, 2, ... that report these lost peers, for as long as the coordinator needs
/// to judge them.
void report_lost(CoordinatorHarness& harness, const std::vector<std::vector<std::string>>& lost) {
  const auto view = harness.coordinator.view();
  for (int i = 0; i < 4; ++i) {
    harness.now += 1s;
    for (ConnectionId member = 1; member <= lost.size(); ++member) {
      Heartbeat beat;
      beat.view = view;
      for (const auto& name : lost[member - 1]) beat.lost.push_back(id_of({name, 1, "", 0}));
      if (!harness.closed.contains(member)) harness.receive(member, beat);
    }
  }
}

TEST(Links, WhoLacksMostPeersIsLeftOutWhoeverReportsFirst) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  report_lost(harness, {{"eu-1", "us-1"}, {"asia-1"}, {}});
  EXPECT_TRUE(harness.closed.contains(1)) << "asia-1 lacks two peers";
  EXPECT_FALSE(harness.closed.contains(2) || harness.closed.contains(3));
  EXPECT_THAT(harness.said,
              testing::Contains(AllOf(HasSubstr("asia-1 is left out"), HasSubstr("eu-1:7000"))));
}

TEST(Links, OneThatComesUpAgainInTimeIsForgotten) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  for (int i = 0; i < 4; ++i) {
    harness.now += 2s;
    Heartbeat beat;
    beat.view = 1;
    if (i % 2 == 0) beat.lost = {id_of({"us-1", 1, "", 0})};
    harness.receive(1, beat);
    harness.receive(2, Heartbeat{});
  }
  EXPECT_EQ(harness.coordinator.participating(), 2U);
}

TEST(Links, WhoLacksOneIsLeftOutForAWhileLongerEachTime) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  std::vector<std::chrono::seconds> times;
  for (int i = 0; i < 4; ++i) {
    harness.closed.clear();
    report_lost(harness, {{"us-1"}, {"eu-1"}});
    ASSERT_TRUE(harness.closed.contains(2)) << "both lack one peer, so the later name is left out";
    const auto began = harness.now;
    harness.close(2);
    auto back = CoordinatorHarness::hello("us-1");
    back.activated = back.sealed = harness.last<NewView>(1)->view.number;
    back.token = digest_of(99);
    harness.receive(2, back);
    while (harness.coordinator.participating() < 2 && harness.now < began + 1000s) {
      for (const ConnectionId member : {1, 2}) {
        auto sealed = CoordinatorHarness::sealed();
        sealed.view = harness.last<Seal>(member)->view;
        sealed.activated = 1;
        if (sealed.view > sealed.activated) harness.receive(member, sealed);
        harness.receive(member, Heartbeat{});
      }
      if (harness.coordinator.participating() < 2) harness.tick(harness.now + 1s);
    }
    times.push_back(std::chrono::duration_cast<std::chrono::seconds>(harness.now - began));
  }
  EXPECT_THAT(times, ElementsAre(30s, 60s, 120s, 120s)) << "6, 12 and at most 24 times detect_timeout";
}

TEST(Links, MoreLostPeersThanThereAreIsNoReport) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  Heartbeat beat;
  beat.view = 1;
  beat.lost.assign(1000, id_of({"us-1", 1, "", 0}));
  harness.receive(1, beat);
  EXPECT_EQ(harness.coordinator.participating(), 2U);
}

// ---- the coordinator ----

TEST(Coordinators, OneThatDiesBetweenSealAndNewView) {
  Cluster cluster({"a", "b", "c"});
  cluster.train();
  cluster.contribute({"a"});
  cluster.lost = [](const std::string&, const ControlMessage& message) {
    return std::holds_alternative<NewView>(message);
  };
  cluster.kill("c");  // a and b have sealed and get no view
  cluster.kill_coordinator();
  cluster.lost = [](auto&, auto&) { return false; };
  cluster.contribute({"b"});
  EXPECT_EQ(cluster.round_of("a"), 1U) << "after sealing, no round may commit in the old view";
  const auto given = cluster.disk->number;
  cluster.start_coordinator();
  EXPECT_GT(cluster.coordinator().view(), given) << "a view number must not be used twice";
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  expect_equal(cluster, {"a", "b"}, 2);
}

TEST(Coordinators, MembersGoOnWithoutOneAndAreTakenOverByTheNext) {
  Cluster cluster({"a", "b", "c"});
  cluster.train();
  cluster.kill_coordinator();
  cluster.train(3);
  expect_equal(cluster, {"a", "b", "c"}, 4);
  cluster.start_coordinator();
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  cluster.train();
  expect_equal(cluster, {"a", "b", "c"}, 5);
}

TEST(Coordinators, OneWhoseDiskIsLostAsksForRecover) {
  Cluster cluster({"a", "b"});
  cluster.train(2);
  cluster.kill_coordinator();
  cluster.disk.reset();
  cluster.start_coordinator();
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("if its disk is lost, start it with --recover"));
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 3);
  cluster.kill_coordinator();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);  // it does not know which members to wait for
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  EXPECT_GT(cluster.coordinator().view(), 1000U) << "the forgotten view numbers were lower";
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 4);
  EXPECT_EQ(cluster.disk->token, cluster.at("a").token) << "only the members know the run's token";
}

TEST(Coordinators, OneThatComesBackWaitsForAnHeir) {
  Cluster cluster({"a", "b"});
  cluster.train();
  cluster.isolate("b");
  cluster.pass(2 * Cluster::detect_timeout);
  cluster.train();
  ASSERT_THAT(cluster.view(), ElementsAre("a"));
  cluster.kill_coordinator();
  cluster.kill("a");
  cluster.heal();
  cluster.start_coordinator();
  cluster.pass(2 * Cluster::detect_timeout);  // it waits for members that may come
  EXPECT_THAT(cluster.view(), IsEmpty()) << "b does not know the rounds that only a had";
  EXPECT_TRUE(cluster.was_said("waiting for a member of view 2"));
  cluster.kill_coordinator();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("only 0 of 1 trainers of view 2 are here (missing: a)"));
  cluster.kill_coordinator();
  cluster.given_up = {"a"};
  cluster.start_coordinator(2000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("b")) << "the operator has given up a for good";
}

// ---- two coordinators ----

/// Only a, one of two trainers, reaches the coordinator that recovers the run.
class Halves : public testing::Test {
 protected:
  void recover(ViewNumber number) {
    cluster.kill_coordinator();
    cluster.start_coordinator(number);
    cluster.pass(2 * Cluster::detect_timeout);
  }
  void SetUp() override {
    cluster.train(2);
    cluster.isolate("b");
  }
  Cluster cluster{{"a", "b"}};
};

TEST_F(Halves, OneWithoutTheStateDoesNotGoOnWithHalf) {
  cluster.disk.reset();
  recover(1000);
  EXPECT_THAT(cluster.view(), IsEmpty()) << "another coordinator may be running with b";
  EXPECT_TRUE(cluster.was_said("only 1 of 2 trainers of view 1 are here (missing: b)"));
  EXPECT_TRUE(cluster.was_said("--recover --give-up b"));
  cluster.heal();
  cluster.reconnect("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 3);
}

TEST_F(Halves, AnOperatorMayGiveTheOthersUpByName) {
  cluster.disk.reset();
  cluster.given_up = {"c"};
  recover(1000);
  EXPECT_THAT(cluster.view(), IsEmpty()) << "the missing member is b";
  cluster.given_up = {"b"};
  recover(2000);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
  cluster.train();
  EXPECT_EQ(cluster.round_of("a"), 3U);
}

TEST_F(Halves, OneWithTheStateGoesOnWithHalf) {
  recover(1000);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
}

TEST(Majorities, MoreThanHalfNeedNoState) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(2);
  cluster.isolate("c");
  cluster.kill_coordinator();
  cluster.disk.reset();
  cluster.start_coordinator(1000);
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b"));
}

/// The previous coordinator had a longer network.detect_timeout, so members may still act on a lease of that
/// length.
TEST(Leases, OfTheCoordinatorBeforeAreWaitedFor) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{7,
                          {CoordinatorHarness::hello("a").member, CoordinatorHarness::hello("b").member},
                          options.token,
                          {},
                          30'000'000};
  CoordinatorHarness run(options);
  auto back = CoordinatorHarness::hello("a");
  back.activated = back.sealed = 7;
  back.token = options.token;
  run.receive(1, back);
  for (Time now = 1s; now <= 31s; now += 1s) {
    run.receive(1, Heartbeat{});
    run.tick(now);
    EXPECT_EQ(run.count<Seal>(1), now < 30s ? 0U : 1U) << now.count();
  }
  auto answer = CoordinatorHarness::sealed();
  answer.view = run.last<Seal>(1)->view;
  answer.activated = 7;
  run.receive(1, answer);
  ASSERT_TRUE(run.stored);
  EXPECT_EQ(run.stored->lease, 5'000'000U) << "the new coordinator's own";
}

TEST(Coordinators, TheFirstViewHadBegunUnheardOf) {
  Cluster cluster({"a", "b"});
  cluster.kill_coordinator();
  // The coordinator does not know that the view had begun at b, because b said hello as a fresh member.
  cluster.kill("b");
  cluster.start_coordinator();
  cluster.pass(2 * Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a"));
  cluster.start("b");
  cluster.learn("b", "a");
  cluster.train();
  expect_equal(cluster, {"a", "b"}, 1);
}

TEST(Coordinators, AFirstViewThatReachedNobodyBeginsAgain) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{
      1, {CoordinatorHarness::hello("eu-1").member, CoordinatorHarness::hello("us-1").member}, digest_of(99)};
  for (const bool begun : {false, true}) {
    CoordinatorHarness harness(options);
    harness.receive(1, CoordinatorHarness::hello("eu-1"));
    EXPECT_FALSE(harness.last<Seal>(1));
    harness.receive(2, CoordinatorHarness::hello("us-1"));
    ASSERT_TRUE(harness.last<Seal>(1) && harness.last<Seal>(2))
        << "all members of the stored view are here and fresh";
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(1)->view;
    EXPECT_EQ(sealed.view, 2U);
    harness.receive(1, sealed);
    if (begun) sealed.activated = 1;  // the view began after us-1 had said hello
    harness.receive(2, sealed);
    ASSERT_TRUE(harness.last<NewView>(1)) << "no round can have been made without eu-1";
    EXPECT_EQ(harness.last<NewView>(1)->view.number, 2U);
    EXPECT_EQ(harness.last<NewView>(1)->reference, begun ? 1U : 0U);
    EXPECT_FALSE(harness.last<Admitted>(1));
    EXPECT_FALSE(harness.ended);
  }
}

// ---- answers that no correct member gives ----

TEST(Answers, AreJudgedBeforeAnythingIsMadeOfThem) {
  const FragmentLayout layout({{0, 100}, {100, 50}}, 32);
  auto good = CoordinatorHarness::sealed();
  good.view = 7;
  good.activated = 6;
  good.fragments = {{20, digest_of(1)}, {20, digest_of(2)}};
  good.history = {{{18, digest_of(3)}, {19, digest_of(4)}}, {}};
  good.ledger = {FragmentLedger(20), FragmentLedger(20)};
  good.held = {
      {0, 20, ChunkSet(4)}, {0, 20 + Member::window, ChunkSet(4)}, {1, 21 - Member::max_held, ChunkSet(2)}};
  const Bounds bounds{.layout = &layout};
  EXPECT_EQ(problem_of(good, bounds), "");
  const auto fits_with = [&](auto change) {
    auto answer = good;
    change(answer);
    return problem_of(answer, bounds).empty();
  };
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.history.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.ledger.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.ledger[0].add({}); }))
      << "a ledger that is ahead of the fragment's round";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.activated = 7; }))
      << "it would make its own view the reference";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.history[0][1].round = 17; })) << "rounds out of order";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments[0].round = 21; })) << "a gap in the history";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments[1].round = UINT64_MAX; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) {
    sealed.history[1].clear();
    for (Round r = 0; r < 20; ++r) sealed.history[1].push_back({r, {}});
  })) << "more history than is kept";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[0].fragment = 2; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[0].chunks = ChunkSet(9); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round = 20; })) << "twice";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round += 1; })) << "a round too new to be kept";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round = UINT64_MAX; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[2].round -= 1; })) << "a round too old to be kept";
  const auto fits_with_rows = [&](std::size_t held, std::vector<TrainedOn> rows, std::size_t chunk = 0) {
    return fits_with([&](Sealed& sealed) {
      sealed.held[held].chunks.add(chunk);
      sealed.held[held].trained_on = std::move(rows);
    });
  };
  EXPECT_TRUE(fits_with_rows(1, {{1, {0, 4, 8}}}));
  EXPECT_FALSE(fits_with_rows(0, {{1, {0, 4, 8}}})) << "samples of a round that is in the ledger already";
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, 8}}}, 1)) << "samples without the chunk that carries them";
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, 4}}}));
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, UINT64_MAX}}}));
  EXPECT_FALSE(fits_with_rows(1, {max_members * max_trained_on + 1, {1, {0, 4, 8}}}));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].contributors.resize(max_members + 1); }));
}

// ---- leaving, too few, the end ----

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

/// The Hello of a member that was done when its connection broke.
Hello done_and_back(const std::string& name) {
  auto hello = CoordinatorHarness::hello(name);
  hello.activated = hello.sealed = 1;
  hello.token = digest_of(99);
  hello.done = true;
  return hello;
}

TEST(Finishing, WithMembersLostAtTheEnd) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.close(3);
  EXPECT_FALSE(harness.ended) << "eu-1 is not done";
  EXPECT_EQ(harness.last<Seal>(1)->view, 2U) << "a member that is done still owns chunks";
  harness.receive(2, Done{"{}", digest_of(4)});
  ASSERT_TRUE(harness.ended) << "all remaining members are done";
  EXPECT_EQ(harness.ended->how, Ended::How::finished);
}

TEST(Finishing, OneThatIsDoneAndReconnectsSaysItsHashAgain) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.receive(3, done_and_back("eu-1"));
  harness.receive(2, Done{"{}", digest_of(4)});
  EXPECT_FALSE(harness.ended) << "eu-1's hash was lost with its connection";
  harness.receive(3, Done{"{}", digest_of(4)});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, Ended::How::finished);
}

TEST(Finishing, WhileAViewChangesTheLastEvaluationCountsToo) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.receive(3, done_and_back("eu-1"));
  for (const ConnectionId member : {2, 3}) harness.receive(member, EvalReport{100, 20, 10});
  harness.receive(2, Done{"{}", digest_of(4)});
  EXPECT_TRUE(harness.evaluated.empty()) << "the members of the next view are not known yet";
  harness.receive(3, Done{"{}", digest_of(4)});
  ASSERT_TRUE(harness.ended);
  ASSERT_EQ(harness.evaluated.size(), 1U);
  EXPECT_EQ(harness.evaluated[0].loss, 2.0);
}

TEST(Finishing, WhoHasTrainedNothingIsNotDone) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, Done{"{}", digest_of(5)});
  harness.receive(3, CoordinatorHarness::hello("asia-1"));
  EXPECT_EQ(harness.refusal(3), "") << "the run is not ending";
}

TEST(Finishing, TheAgreedStepOutlivesWhoHasNamedIt) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.stop("enough");
  harness.receive(1, Held{10});
  harness.receive(2, Held{10});
  harness.receive(3, Held{12});
  harness.close(3);
  EXPECT_EQ(harness.count<StopAt>(1), 1U);
  EXPECT_EQ(harness.last<StopAt>(1)->step, 12U) << "eu-1 may have reached it already";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
