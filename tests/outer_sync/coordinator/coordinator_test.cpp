// The coordinator during the run: agreement, speeds, paths, losses, evaluations.

#include <chrono>
#include <cmath>
#include <limits>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using How = Ended::How;

Heartbeat heartbeat(std::uint64_t step, std::vector<std::pair<Round, std::uint64_t>> fragments) {
  Heartbeat heartbeat;
  heartbeat.view = 1;
  heartbeat.step = step;
  heartbeat.fragments = std::move(fragments);
  return heartbeat;
}

// ---- agreement ----

TEST(Chains, EqualOnesGoOn) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.members_changed = 0;
  for (Round round = 1; round < 100; ++round) {
    harness.receive(1, heartbeat(round, {{round, round * 7}, {round - 1, round * 3}}));
    harness.receive(2, heartbeat(round, {{round - 1, (round - 1) * 7}, {round - 1, round * 3}}));
  }
  EXPECT_FALSE(harness.ended);
  EXPECT_EQ(harness.members_changed, 198U);
  EXPECT_EQ(harness.count<HeartbeatReply>(2), 99U);
  EXPECT_EQ(harness.coordinator.members().at("us-1").heartbeat.step, 99U);
}

TEST(Chains, ADifferenceIsNamedByMembersRoundAndFragment) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.receive(1, heartbeat(5, {{4, 40}, {3, 30}}));
  harness.receive(2, heartbeat(5, {{4, 40}, {3, 30}}));
  harness.receive(1, heartbeat(6, {{5, 50}, {4, 41}}));
  harness.receive(3, heartbeat(5, {{4, 40}, {3, 31}}));
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::diverged);
  EXPECT_THAT(harness.ended->reason,
              HasSubstr("chain hashes of us-1 and asia-1 differ at round 3 of fragment 1"));
  for (const ConnectionId member : {1, 2, 3}) {
    EXPECT_EQ(harness.last<Abort>(member)->reason, harness.ended->reason);
    EXPECT_TRUE(harness.closed.contains(member));
  }
}

TEST(Chains, EqualPrefixesAtDifferentRoundsAreNoDifference) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, heartbeat(5, {{4, 40}}));
  harness.receive(2, heartbeat(5, {{5, 50}}));
  EXPECT_FALSE(harness.ended);
}

TEST(Chains, MoreFragmentsThanTheModelHasAreIgnored) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, heartbeat(1, {{1, 1}, {1, 1}, {1, 1}}));
  harness.receive(2, heartbeat(1, {{1, 2}, {1, 2}, {1, 2}}));
  EXPECT_FALSE(harness.ended) << "the layout has two fragments";
}

// ---- speeds ----

TEST(Speeds, TheReplyHasTheMedianOfThoseThatAreKnown) {
  CoordinatorHarness harness(4);
  harness.run_all({"a", "b", "c", "d"});
  const auto say = [&](ConnectionId member, double speed) {
    auto beat = heartbeat(1, {{1, 1}, {1, 1}});
    beat.inner_steps_per_second = speed;
    harness.receive(member, beat);
    return harness.last<HeartbeatReply>(member)->inner_steps_per_second;
  };
  EXPECT_EQ(say(1, 0), 0) << "no speed was reported yet";
  EXPECT_EQ(say(1, 4), 4);
  EXPECT_EQ(say(2, 2), 3) << "the median of two is their mean";
  EXPECT_EQ(say(3, 100), 4);
  EXPECT_EQ(say(4, std::numeric_limits<double>::quiet_NaN()), 4) << "an invalid speed must not count";
  EXPECT_EQ(say(4, -5), 4);
  EXPECT_EQ(say(4, INFINITY), 4);
  EXPECT_EQ(say(4, 3), 3.5);
}

// ---- paths ----

TEST(SlowPaths, AreSaidOnceByName) {
  CoordinatorHarness harness(3);
  harness.run_all({"eu-1", "eu-2", "us-1"});
  std::vector<ReplicaId> ids;
  for (const auto* name : {"eu-1", "eu-2", "us-1"}) ids.push_back(id_of(harness.hello(name).member));
  const auto beat = [&](std::size_t m, ViewNumber view) {
    auto out = heartbeat(1, {{1, 1}, {1, 1}});
    out.view = view;
    for (std::size_t peer = 0; peer < 3; ++peer) {
      const bool is_slow = m == 0 && peer == 2;
      if (peer != m) out.paths.push_back({ids[peer], 90'000, 80'000, is_slow ? 2'000'000U : 12'000'000U});
    }
    harness.receive(m + 1, out);
  };
  for (int i = 0; i < 5; ++i) {
    for (const std::size_t m : {0, 1, 2}) beat(m, 0);
  }
  EXPECT_TRUE(harness.coordinator.paths().all().empty()) << "the reports are of another view";
  const auto count = [&] {
    return std::ranges::count(
        harness.said,
        "eu-1 -> us-1 delivers chunks 6x slower than their other paths: slow path, not a "
        "slow machine (16 Mbit/s)");
  };
  for (int i = 0; i < 100; ++i) {
    for (const std::size_t m : {0, 1, 2}) beat(m, 1);
  }
  EXPECT_EQ(count(), 0) << "reports at one moment are compared once";
  for (int i = 0; i < 5; ++i) {
    harness.tick(harness.now + 1s);
    for (const std::size_t m : {0, 1, 2}) beat(m, 1);
  }
  EXPECT_EQ(count(), 1) << testing::PrintToString(harness.said);
  EXPECT_EQ(harness.coordinator.paths().all().size(), 6U);
}

// ---- losses in a run that cannot survive them ----

TEST(Losses, AClosedConnectionEndsTheRunByName) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.run_all({"eu-1", "us-1"});
  harness.close(2);
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::failed);
  EXPECT_THAT(harness.ended->reason, HasSubstr("us-1 is lost: its connection closed"));
  EXPECT_THAT(harness.last<Abort>(1)->reason, HasSubstr("us-1 is lost"));
}

TEST(Losses, ASilentMemberEndsTheRunByName) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.run_all({"eu-1", "us-1"});
  harness.now = 3s;
  harness.receive(1, heartbeat(1, {}));
  harness.tick(5s);
  EXPECT_FALSE(harness.ended);
  harness.tick(5s + 1us);
  ASSERT_TRUE(harness.ended);
  EXPECT_THAT(harness.ended->reason,
              AllOf(HasSubstr("us-1"), HasSubstr("silent"), HasSubstr("detect_timeout")));
}

TEST(Losses, AMembersReasonReachesTheOthers) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, Leave{"the loss is not finite"});
  EXPECT_THAT(harness.last<Abort>(1)->reason, HasSubstr("us-1 left: the loss is not finite"));
  EXPECT_EQ(harness.ended->how, How::failed);
}

TEST(Losses, TheLastWhoLeavesEndsNoRunOfThoseCutOff) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.close(1);
  harness.close(2);
  harness.receive(3, Leave{"asked to by a signal"});
  EXPECT_FALSE(harness.ended);
}

TEST(Losses, MessagesThatAreNotAMembersAreDropped) {
  const std::vector<ControlMessage> foreign{CoordinatorHarness::hello("us-1"),
                                            Refused{},
                                            Seal{},
                                            NewView{},
                                            HeartbeatReply{},
                                            Hold{},
                                            StopAt{},
                                            Finished{},
                                            Abort{}};
  for (const auto& message : foreign) {
    CoordinatorHarness harness(2);
    harness.run_all({"eu-1", "us-1"});
    harness.receive(2, message);
    EXPECT_TRUE(harness.closed.contains(2)) << "message of tag " << message.index();
    EXPECT_THAT(harness.said.back(), HasSubstr("us-1 sent a message that members do not send"));
  }
}

TEST(Losses, NothingHappensAfterTheEnd) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.run_all({"eu-1", "us-1"});
  harness.close(2);
  const auto sent = harness.sent;
  harness.receive(1, heartbeat(1, {{1, 1}}));
  harness.receive(1, Done{});
  harness.receive(3, CoordinatorHarness::hello("us-2"));
  harness.close(1);
  harness.stop("again");
  harness.tick(1000s);
  EXPECT_EQ(harness.sent[1].size(), sent.at(1).size());
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
      for (const auto& name : lost[member - 1]) beat.unreachable.push_back(id_of({name, 1, "", 0}));
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
    if (i % 2 == 0) beat.unreachable = {id_of({"us-1", 1, "", 0})};
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
  beat.unreachable.assign(1000, id_of({"us-1", 1, "", 0}));
  harness.receive(1, beat);
  EXPECT_EQ(harness.coordinator.participating(), 2U);
}

// ---- evaluation, announcements, leases ----

TEST(Evaluation, SharesAreWeighedByTheirTokens) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, EvalReport{100, 10, 10});
  harness.receive(2, EvalReport{200, 1, 1});
  EXPECT_TRUE(harness.evaluated.empty());
  harness.receive(2, EvalReport{100, 50, 20});
  ASSERT_EQ(harness.evaluated.size(), 1U);
  EXPECT_EQ(harness.evaluated[0].step, 100U);
  EXPECT_EQ(harness.evaluated[0].loss, 2.0);
  harness.receive(1, EvalReport{200, 3, 1});
  EXPECT_EQ(harness.evaluated.at(1).loss, 2.0);
}

TEST(Evaluation, NoTokensAtAllIsNoDivisionByZero) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, EvalReport{100, 0, 0});
  EXPECT_EQ(harness.evaluated.at(0).loss, 0.0);
}

TEST(Announcements, ReachEverybody) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, Announce{"10.0.0.1:29500"});
  for (const ConnectionId member : {1, 2}) EXPECT_EQ(harness.last<Announce>(member)->text, "10.0.0.1:29500");
}

TEST(Leases, LastAsLongAsTheCoordinatorWaits) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, Heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {}, .health = {}});
  EXPECT_EQ(harness.last<HeartbeatReply>(1)->lease, 5'000'000U)
      << "in microseconds: a member's own network.detect_timeout may be longer";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
