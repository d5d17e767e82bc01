// The coordinator during the run: agreement, losses, stopping, the end.

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
  for (int i = 0; i < 5; ++i) {
    for (const std::size_t m : {0, 1, 2}) beat(m, 1);
  }
  EXPECT_EQ(
      std::ranges::count(harness.said,
                         "eu-1 -> us-1 delivers chunks 6x slower than their other paths: slow path, not a "
                         "slow machine (2 MB/s)"),
      1)
      << testing::PrintToString(harness.said);
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

// ---- stopping ----

TEST(Stopping, AllStopAtTheLatestStepThatAnyoneIsIn) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.receive(2, StopRequest{"interrupted"});
  EXPECT_TRUE(harness.coordinator.stopping());
  for (const ConnectionId member : {1, 2, 3}) EXPECT_EQ(harness.count<Hold>(member), 1U);
  harness.receive(1, Held{10});
  harness.receive(2, Held{12});
  EXPECT_FALSE(harness.last<StopAt>(1)) << "us-1 has not reported its step";
  harness.receive(3, Held{11});
  for (const ConnectionId member : {1, 2, 3}) EXPECT_EQ(harness.last<StopAt>(member)->step, 12U);
  EXPECT_THAT(harness.said.back(), AllOf(HasSubstr("interrupted"), HasSubstr("eu-1")));
}

TEST(Stopping, AskingTwiceAsksOnce) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.stop("first");
  harness.stop("second");
  harness.receive(1, StopRequest{"third"});
  EXPECT_EQ(harness.count<Hold>(1), 1U);
}

TEST(Stopping, TheAgreedStepIsSaidOnceAndNeverMoves) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.stop("enough");
  harness.receive(1, Held{3});
  harness.receive(2, Held{4});
  harness.receive(1, Held{9});
  EXPECT_EQ(harness.count<StopAt>(1), 1U) << "some members may have stopped at the first answer already";
  EXPECT_EQ(harness.last<StopAt>(2)->step, 4U);
}

// Without a final sync, a fast member can be done while a slow one is still some steps behind.
TEST(Stopping, WhereADoneMemberIsCountsToo) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.stop("enough");
  harness.receive(2, Held{97});
  EXPECT_FALSE(harness.last<StopAt>(2)) << "eu-1 is done with a later step, which us-1 has to reach too";
  harness.receive(1, Held{100});
  EXPECT_EQ(harness.last<StopAt>(2)->step, 100U);
}

/// While rounds do not commit, each member stops where it is. One of them may have received a result that has
/// not reached the other.
TEST(Stopping, TheHashesOfThoseWhoHaveAppliedOtherRoundsAreNoDivergence) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.stop("enough");
  harness.receive(1, Heartbeat{.number = 1, .view = 1, .lost = {}, .fragments = {{3, 1}, {2, 1}}});
  harness.receive(2, Heartbeat{.number = 1, .view = 1, .lost = {}, .fragments = {{2, 1}, {2, 1}}});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.receive(2, Done{"{}", digest_of(5)});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::stopped);
  EXPECT_THAT(harness.ended->reason, HasSubstr("us-1 and eu-1 were stopped while no round committed"));
}

/// After a reconnect, the coordinator does not know yet which rounds the member has applied.
TEST(Stopping, OneThatComesBackHasDivergedOnlyIfItSaysThatItHasTheSameRounds) {
  for (const bool equal : {false, true}) {
    auto options = CoordinatorHarness::default_options(2);
    options.least = 2;
    CoordinatorHarness harness(options);
    harness.run_all({"eu-1", "us-1"});
    harness.receive(1, Heartbeat{.number = 1, .view = 1, .lost = {}, .fragments = {{3, 1}, {2, 1}}});
    harness.stop("enough");
    harness.close(2);
    auto back = CoordinatorHarness::hello("us-1");
    back.activated = back.sealed = 1;
    back.token = digest_of(99);
    harness.receive(3, back);
    harness.receive(1, Done{"{}", digest_of(4)});
    harness.receive(3, Done{"{}", digest_of(equal ? 4 : 5)});
    ASSERT_TRUE(harness.ended);
    EXPECT_EQ(harness.ended->how, equal ? How::finished : How::stopped);
    ASSERT_TRUE(harness.last<Finished>(1) && harness.last<Finished>(3));
    EXPECT_EQ(harness.last<Finished>(3)->problem, "") << "the run has ended well";
    EXPECT_EQ(harness.last<Finished>(3)->global_hash, digest_of(equal ? 4 : 5));
  }
}

TEST(Stopping, OneThatComesBackWhileRoundsDoNotCommitStopsToo) {
  auto options = CoordinatorHarness::default_options(3);
  options.least = 3;
  CoordinatorHarness harness(options);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.close(2);
  harness.close(3);
  harness.stop("enough");
  auto back = CoordinatorHarness::hello("eu-1");
  back.activated = back.sealed = 1;
  back.token = digest_of(99);
  harness.receive(4, back);
  EXPECT_TRUE(harness.last<Hold>(4)) << "no view will form with which it would get the request";
}

TEST(Stopping, HeldUnaskedIsIgnored) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, Held{5});
  EXPECT_FALSE(harness.last<StopAt>(1));
  EXPECT_FALSE(harness.coordinator.members().at("us-1").held);
}

TEST(Stopping, BeforeTheFirstStepThereIsNothingToAgreeOn) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.stop("interrupted");
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::stopped);
  EXPECT_THAT(harness.ended->reason, HasSubstr("stopped before the first step"));
  EXPECT_TRUE(harness.last<Abort>(1));
}

// ---- evaluation, announcements, the end ----

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

// ---- metrics and log lines of members ----

/// Log lines with their numbers as text.
Records lines(std::uint64_t first, std::uint64_t end) {
  Records out{first, {}};
  for (auto n = first; n < end; ++n) out.records.push_back({RecordKind::log, std::to_string(n)});
  return out;
}
std::vector<std::string> words_of(const Gathered& gathered) {
  std::vector<std::string> out;
  for (const auto& record : gathered.records) out.push_back(record.line);
  return out;
}

TEST(Gathering, EveryLineOnceHoweverOftenItIsSaid) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, lines(0, 2));
  EXPECT_EQ(harness.last<RecordsTaken>(2)->next, 2U);
  harness.receive(2, lines(0, 2));  // as if the answer was lost
  harness.receive(2, lines(1, 4));
  EXPECT_EQ(harness.last<RecordsTaken>(2)->next, 4U);
  ASSERT_EQ(harness.gathered.size(), 2U);
  EXPECT_EQ(harness.gathered[0].member, "us-1");
  EXPECT_THAT(words_of(harness.gathered[0]), ElementsAre("0", "1"));
  EXPECT_THAT(words_of(harness.gathered[1]), ElementsAre("2", "3"));
  EXPECT_FALSE(harness.last<RecordsTaken>(1)) << "the lines were another member's";
}

TEST(Gathering, WhatTheMemberCouldNotKeepIsCounted) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, lines(0, 1));
  harness.receive(1, lines(11, 12));
  EXPECT_EQ(harness.gathered.at(1).left_out, 10U);
  EXPECT_EQ(harness.last<RecordsTaken>(1)->next, 12U);
}

TEST(Gathering, ItGoesOnOverANewConnectionAndBeginsAnewWithANewProcess) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, lines(0, 3));
  harness.close(2);
  auto back = CoordinatorHarness::hello("us-1");
  back.activated = back.sealed = 1;
  back.fresh = false;
  back.token = digest_of(99);
  harness.receive(3, back);
  harness.receive(3, lines(1, 5));
  EXPECT_THAT(words_of(harness.gathered.at(1)), ElementsAre("3", "4"));
  EXPECT_EQ(harness.gathered.at(1).left_out, 0U);

  auto again = CoordinatorHarness::hello("us-1");
  again.member.incarnation = 2;
  harness.receive(4, again);
  ASSERT_EQ(harness.refusal(4), "");
  harness.receive(4, lines(0, 1));
  EXPECT_EQ(harness.gathered.at(2).incarnation, 2U);
  EXPECT_THAT(words_of(harness.gathered.at(2)), ElementsAre("0"));
}

TEST(Gathering, RecordsThatCannotBeEndTheConnection) {
  const Records unsound[] = {
      {0, {}},
      {0, {{static_cast<RecordKind>(2), "of no kind"}}},
      {0, {{RecordKind::log, std::string(longest_record + 1, 'x')}}},
      {~std::uint64_t{0}, {{RecordKind::log, "beyond all numbers"}}},
  };
  for (const auto& records : unsound) {
    CoordinatorHarness harness(2);
    harness.run_all({"eu-1", "us-1"});
    harness.receive(2, records);
    EXPECT_TRUE(harness.closed.contains(2));
    EXPECT_TRUE(harness.gathered.empty());
  }
}

TEST(Ending, EqualHashesAreAGoodEnd) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, Done{"{\"a\": 1}", digest_of(4)});
  EXPECT_FALSE(harness.last<Finished>(1)) << "us-1 is not done";
  harness.receive(2, Done{"{}", digest_of(4)});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::finished);
  EXPECT_EQ(harness.ended->reason, "");
  for (const ConnectionId member : {1, 2}) {
    EXPECT_EQ(harness.last<Finished>(member)->problem, "");
    EXPECT_TRUE(harness.closed.contains(member));
  }
  EXPECT_EQ(harness.coordinator.members().at("eu-1").result.summary, "{\"a\": 1}");
}

TEST(Ending, UnequalHashesAreADivergence) {
  CoordinatorHarness harness(3);
  harness.run_all({"asia-1", "eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.receive(2, Done{"{}", digest_of(5)});
  harness.receive(3, Done{"{}", digest_of(4)});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::diverged);
  EXPECT_THAT(harness.ended->reason, HasSubstr("global hashes of eu-1 and asia-1 differ at the end"));
  EXPECT_EQ(harness.last<Finished>(3)->problem, harness.ended->reason);
}

TEST(Ending, DoneBeforeTheViewBeginsIsNotBelieved) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(1, Done{});
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.receive(2, Done{});
  EXPECT_FALSE(harness.ended);
}

TEST(Ending, OneThatIsDoneAndVanishesBeforeTheOthersAreIsStillALoss) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, Done{"{}", digest_of(4)});
  harness.close(1);
  ASSERT_TRUE(harness.ended) << "us-1 may still need the chunks of eu-1";
  EXPECT_EQ(harness.ended->how, How::failed);
}

TEST(Ending, WhoStillTakesTheStateIsToldAtOnce) {
  for (const bool stop : {false, true}) {
    CoordinatorHarness harness(2);
    harness.run_all({"eu-1", "us-1"});
    harness.receive(3, CoordinatorHarness::hello("asia-1"));
    ASSERT_TRUE(harness.last<Admitted>(3));
    if (stop) {
      harness.stop("enough");
    } else {
      harness.receive(1, Done{"{}", digest_of(1)});
    }
    EXPECT_EQ(harness.refusal(3), "the run is ending; there is nothing left to join");
    harness.receive(1, Done{"{}", digest_of(1)});
    harness.receive(2, Done{"{}", digest_of(1)});
    ASSERT_TRUE(harness.ended);
    EXPECT_EQ(harness.ended->how, How::finished) << harness.ended->reason;
    EXPECT_FALSE(harness.last<Finished>(3)) << "it has no part in the result";
  }
}

TEST(Leases, LastAsLongAsTheCoordinatorWaits) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, Heartbeat{.number = 1, .view = 1, .lost = {}, .fragments = {}, .health = {}});
  EXPECT_EQ(harness.last<HeartbeatReply>(1)->lease, 5'000'000U)
      << "in microseconds: a member's own network.detect_timeout may be longer";
}

TEST(Newcomers, WhatTheyNeedIsKeptUntilTheyAreIn) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  const Heartbeat at_nine{.number = 1, .view = 1, .lost = {}, .fragments = {{9, 1}, {9, 1}}, .health = {}};
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

/// Options of a run of two after the coordinator has lost its disk.
CoordinatorOptions recovering() {
  auto options = CoordinatorHarness::default_options(2);
  options.recover = 1000;
  return options;
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
  harness.receive(1, Heartbeat{.number = 1, .view = before, .lost = {}, .fragments = {{7, 1}, {7, 1}}});
  harness.receive(6, Heartbeat{.number = 1, .lost = {}, .fragments = {}});
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
    for (const ConnectionId who : {1, 2, 6}) harness.receive(who, Heartbeat{.lost = {}, .fragments = {}});
    harness.tick(i * 1s);
  }
  EXPECT_GT(harness.last<NewView>(1)->view.number, before);
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
}

TEST(Recovering, ARunThatNobodyHereHasBegunBeginsAnew) {
  CoordinatorHarness harness(recovering());
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  for (const ConnectionId member : {1, 2}) {
    harness.tick(4s);
    harness.receive(member, Heartbeat{});
    EXPECT_FALSE(harness.last<Seal>(member)) << "a member that has begun the run may be on its way";
  }
  harness.tick(6s);
  for (const ConnectionId member : {1, 2}) {
    ASSERT_TRUE(harness.last<Seal>(member));
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(member)->view;
    EXPECT_GT(sealed.view, 1000U);
    harness.receive(member, sealed);
  }
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->token, digest_of(99));
  auto left = CoordinatorHarness::hello("asia-1");
  left.activated = left.sealed = 7;
  left.token = digest_of(5);
  harness.receive(3, left);
  EXPECT_THAT(harness.refusal(3), HasSubstr("has been in another run")) << "its rounds are not this run's";
  EXPECT_FALSE(harness.ended);
}

TEST(Recovering, OneThatHasTakenTheStateMustBeStartedAgain) {
  CoordinatorHarness harness(recovering());
  auto fetcher = CoordinatorHarness::hello("eu-1");
  fetcher.fresh = false;
  harness.receive(1, fetcher);
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.tick(6s);
  EXPECT_FALSE(harness.last<Seal>(2));
  ASSERT_TRUE(harness.last<Suspended>(2));
  EXPECT_THAT(harness.last<Suspended>(2)->reason,
              testing::AllOf(HasSubstr("begins anew when exactly 2 newly started replicas"),
                             HasSubstr("start again: eu-1")));
  auto again = CoordinatorHarness::hello("eu-1");
  again.member.incarnation = 2;
  harness.receive(3, again);
  EXPECT_TRUE(harness.last<Seal>(2) && harness.last<Seal>(3));
}

/// us-1, which has begun the run, comes and goes; eu-1, which has not, stays.
void one_with_the_state_comes_and_goes(CoordinatorHarness& harness) {
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  auto begun = CoordinatorHarness::hello("us-1");
  begun.activated = begun.sealed = 7;
  begun.token = digest_of(5);
  harness.receive(2, begun);
  harness.close(2);
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  harness.tick(6s);
}

TEST(Recovering, WhoHasBegunIsWhoseRunItIs) {
  CoordinatorHarness harness(recovering());
  one_with_the_state_comes_and_goes(harness);
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  EXPECT_FALSE(harness.last<Seal>(3)) << "it was here with the state and may come back";
}

TEST(Recovering, WhoWasHereWithTheStateAndIsStartedAgainBringsItNoMore) {
  CoordinatorHarness harness(recovering());
  one_with_the_state_comes_and_goes(harness);
  auto again = CoordinatorHarness::hello("us-1");
  again.member.incarnation = 2;
  harness.receive(3, again);
  EXPECT_FALSE(harness.last<Seal>(1)) << "eu-1 was going to copy the state of a member that is gone";
  ASSERT_TRUE(harness.last<Suspended>(3));
  EXPECT_THAT(harness.last<Suspended>(3)->reason, HasSubstr("start again: eu-1"));
  again = CoordinatorHarness::hello("eu-1");
  again.member.incarnation = 2;
  harness.receive(4, again);
  for (const ConnectionId member : {3, 4}) {
    ASSERT_TRUE(harness.last<Seal>(member)) << "there is nothing left to wait for";
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(member)->view;
    harness.receive(member, sealed);
  }
  ASSERT_TRUE(harness.last<NewView>(3));
  EXPECT_EQ(harness.last<NewView>(3)->token, digest_of(99)) << "this is another run";
}

/// Only eu-1 was in the last view, so only eu-1 knows the run's last rounds; us-1 was left out of that view.
TEST(StartedAgain, AViewWhoseOnlyHeirIsLostBeforeItBeginsDoesNotBegin) {
  auto options = CoordinatorHarness::default_options(2);
  options.last = LastView{7, {CoordinatorHarness::hello("eu-1").member}, options.token};
  CoordinatorHarness harness(options);
  const auto comes_back = [&](ConnectionId connection, const std::string& name, ViewNumber begun) {
    auto hello = CoordinatorHarness::hello(name);
    hello.activated = hello.sealed = begun;
    hello.token = options.token;
    harness.receive(connection, hello);
  };
  const auto answers = [&](ConnectionId connection, ViewNumber begun) {
    ASSERT_TRUE(harness.last<Seal>(connection));
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = harness.last<Seal>(connection)->view;
    sealed.activated = begun;
    harness.receive(connection, sealed);
  };
  comes_back(1, "us-1", 6);
  comes_back(2, "eu-1", 7);
  answers(1, 6);
  harness.close(2);
  EXPECT_FALSE(harness.last<NewView>(1)) << "rounds that eu-1 has applied would be lost";
  ASSERT_TRUE(harness.last<Suspended>(1));
  EXPECT_THAT(harness.last<Suspended>(1)->reason, HasSubstr("waiting for the members of the last view"));
  harness.tick(4s);
  harness.receive(1, Heartbeat{});
  comes_back(3, "eu-1", 7);
  answers(1, 6);
  answers(3, 7);
  EXPECT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
}

/// The previous coordinator died between storing the first view and sending it.
TEST(StartedAgain, AFirstViewThatReachedNobodyBeginsWithoutThoseWhoCameLater) {
  auto options = CoordinatorHarness::default_options(2);
  const auto hello = CoordinatorHarness::hello;
  options.last = LastView{1, {hello("eu-1").member, hello("us-1").member}, options.token};
  CoordinatorHarness harness(options);
  harness.receive(1, hello("eu-1"));
  auto later = hello("asia-1");
  later.resume = true;
  harness.receive(2, later);
  harness.receive(3, hello("us-1"));
  EXPECT_TRUE(harness.closed.contains(2)) << "there is no state yet that it could copy";
  harness.receive(4, later);
  EXPECT_TRUE(harness.closed.contains(4));
  harness.seal_all({1, 3});
  ASSERT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
  harness.receive(5, later);
  EXPECT_TRUE(harness.last<Admitted>(5));
  EXPECT_FALSE(harness.last<Refused>(2) || harness.last<Refused>(4)) << "a refused process would end";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
