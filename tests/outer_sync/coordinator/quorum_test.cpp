// Chunks that close without all contributions: quorum, grace and lease; what outer.reject leaves out.

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cluster.h"
#include "coordinator_support.h"
#include "member_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- one member ----

struct Quorum : ProtocolMember {
  Quorum() : hasty(layout, codecs, {.least = 2, .quorum = 2, .grace = Time(100)}, {{}, {}}) {
    begin(hasty);
    hasty.contribute(1, 1, bytes(1, 1), 100);
    EXPECT_EQ(hasty.receive(2, contribution(2, 1, 1, 12)), std::nullopt);
    static_cast<void>(hasty.take_actions());
  }
  std::size_t closed() {
    std::size_t jobs = 0;
    for (const auto& action : hasty.take_actions()) jobs += std::holds_alternative<Reduce>(action) ? 1 : 0;
    return jobs;
  }
  Member hasty;
};

TEST_F(Quorum, IsEnoughAfterTheGraceAndUnderALease) {
  hasty.lease_until(Time(1000));
  hasty.tick(Time(500));
  hasty.tick(Time(599));
  EXPECT_EQ(closed(), 0U) << "the third member may still contribute";
  hasty.tick(Time(600));
  EXPECT_EQ(closed(), 1U);
  hasty.tick(Time(700));
  EXPECT_EQ(closed(), 0U) << "once";
}

TEST_F(Quorum, IsNothingWithoutALease) {
  hasty.tick(Time(0));
  hasty.tick(Time(500));
  EXPECT_EQ(closed(), 0U) << "another view may have begun elsewhere";
  hasty.lease_until(Time(1000));
  hasty.tick(Time(1000));
  EXPECT_EQ(closed(), 0U) << "the lease ends at exactly this time";
  // A late chunk must not close the round by the time of an older tick.
  hasty.lease_until(Time(1001));
  EXPECT_EQ(hasty.receive(2, contribution(2, 1, 1, 12)), std::nullopt);
  EXPECT_EQ(closed(), 0U);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  EXPECT_EQ(closed(), 1U) << "with all contributions, neither is needed";
}

TEST_F(Quorum, WhoComesTooLateIsLeftOut) {
  hasty.lease_until(Time(1000));
  hasty.tick(Time(0));
  hasty.tick(Time(100));
  EXPECT_EQ(closed(), 1U);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  hasty.reduced(view_number, 1, 1, bytes(1, 99));
  std::size_t results = 0;
  for (const auto& action : hasty.take_actions()) {
    if (const auto* sent = std::get_if<SendChunk>(&action)) {
      ++results;
      EXPECT_THAT(sent->message.contributors, ElementsAre(id("b"), id("c")));
    }
  }
  EXPECT_EQ(results, 2U);
}

TEST_F(Quorum, ResultsWithoutOneAreRefused) {
  auto of_two = result(0, 0, 1, 98);
  of_two.contributors = {id("a"), id("c")};
  EXPECT_EQ(hasty.receive(0, of_two), std::nullopt);
  auto of_one = result(0, 0, 2, 98);
  of_one.contributors = {id("a")};
  EXPECT_THAT(hasty.receive(0, of_one).value_or("accepted"),
              HasSubstr("a result of 1 contributions; at least 2"));
  for (const auto& wrong : {std::vector{id("a"), id("a")}, {id("c"), id("a")}, {id("a"), id("d")}}) {
    of_one.contributors = wrong;
    EXPECT_THAT(hasty.receive(0, of_one).value_or("accepted"),
                HasSubstr("not trainers of the view, in member order"));
  }
  EXPECT_THAT(refused(0, of_two), HasSubstr("at least 3")) << "without a quorum, all are needed";
}

TEST_F(Quorum, TheResultSaysWhoIsInIt) {
  auto without_us = result(0, 0, 1, 98);
  without_us.contributors = {id("a"), id("c")};
  EXPECT_EQ(hasty.receive(0, without_us), std::nullopt);
  EXPECT_EQ(hasty.receive(0, contribution(0, 1, 1, 10)), std::nullopt);
  hasty.reduced(view_number, 1, 1, bytes(1, 99));
  for (const auto& action : hasty.take_actions()) {
    if (const auto* round = std::get_if<Deliver>(&action)) {
      EXPECT_THAT(round->included, ElementsAre(false, true)) << "chunk 0 was closed without this member";
      EXPECT_EQ(round->contributed, 2U);
      return;
    }
  }
  FAIL() << "the round must be delivered";
}

// ---- outer.reject ----

/// Member b with outer.reject: contributions of more than twice the median norm are left out.
class Rejecting : public ProtocolMember {
 protected:
  Rejecting() {
    begin(wary);
    wary.contribute(0, 1, bytes(0, 1), 100, 4);
    wary.contribute(1, 1, bytes(1, 1), 100, 4);
    static_cast<void>(wary.take_actions());
  }
  std::string heard(ChunkMessage message) { return wary.receive(0, message).value_or("accepted"); }
  ChunkMessage chunk_0(std::vector<ReplicaId> contributors, std::vector<SquaredNorm> norms) {
    auto message = result(0, 0, 1, 98);
    message.contributors = std::move(contributors);
    message.norms = std::move(norms);
    return message;
  }
  ReplicaId a = id("a"), b = id("b"), c = id("c");
  Member wary{layout, codecs, {.least = 2, .reject = 2}, {{}, {}}};
};

TEST_F(Rejecting, AnOwnerListsAllNormsAndThoseWhoAreLeft) {
  for (const MemberIndex peer : {0, 2})
    EXPECT_EQ(wary.receive(peer, contribution(peer, 1, 1, 50 + peer)), std::nullopt);
  static_cast<void>(wary.take_actions());
  wary.reduced(view_number, 1, 1, bytes(1, 99), {.squares = {3, 4, 900}, .dots = {0, 0, 0}});
  std::size_t results = 0;
  for (const auto& action : wary.take_actions()) {
    if (const auto* sent = std::get_if<SendChunk>(&action)) {
      ++results;
      EXPECT_THAT(sent->message.contributors, ElementsAre(a, b));
      EXPECT_THAT(sent->message.norms,
                  ElementsAre(SquaredNorm{a, 3}, SquaredNorm{b, 4}, SquaredNorm{c, 900}));
    }
  }
  EXPECT_EQ(results, 2U);
}

TEST_F(Rejecting, WhoIsLeftOutIsToldThatItDoesNotComeBack) {
  EXPECT_EQ(heard(chunk_0({a, c}, {{a, 0.5}, {b, 4}, {c, 0.25}})), "accepted");
  for (const MemberIndex peer : {0, 2})
    EXPECT_EQ(wary.receive(peer, contribution(peer, 1, 1, 50 + peer)), std::nullopt);
  wary.reduced(view_number, 1, 1, bytes(1, 99), {.squares = {3, 4, 5}, .dots = {0, 0, 0}});
  for (const auto& action : wary.take_actions()) {
    if (const auto* round = std::get_if<Deliver>(&action)) {
      EXPECT_THAT(round->included, ElementsAre(false, true));
      EXPECT_THAT(round->rejected, ElementsAre(true, false));
      EXPECT_EQ(round->contributed, 2U);
      return;
    }
  }
  FAIL() << "the round must be delivered";
}

TEST_F(Rejecting, ContributorsAndNormsMustAgreeByTheRule) {
  EXPECT_THAT(heard(chunk_0({a, b}, {{a, 3}, {b, 4}, {c, 5}})),
              HasSubstr("other contributors than outer.reject keeps"))
      << "c is not an outlier";
  EXPECT_THAT(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 900}})),
              HasSubstr("other contributors than outer.reject keeps"))
      << "c is an outlier";
  EXPECT_THAT(heard(chunk_0({}, {})), HasSubstr("a result of 0 contributions")) << "a result needs norms";
  EXPECT_THAT(heard(chunk_0({a, b}, {{a, 3}, {b, 4}})), HasSubstr("a result of 2 contributions; at least 3"))
      << "without a quorum";
  EXPECT_THAT(heard(chunk_0({}, {{a, 3}, {c, 5}, {b, 4}})),
              HasSubstr("not trainers of the view, in member order"));
  for (const double none : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(heard(chunk_0({}, {{a, none}, {b, 4}, {c, 5}})),
                HasSubstr("an invalid sum of squares (negative or NaN)"));
  EXPECT_EQ(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 5}})), "accepted");
}

TEST_F(Rejecting, EverybodyKnowsItsOwnNorm) {
  EXPECT_THAT(heard(chunk_0({a, c}, {{a, 3}, {b, 900}, {c, 5}})),
              HasSubstr("this replica's contribution to chunk 0 that is 900"));
  auto later = chunk_0({}, {{a, 3}, {b, 4}, {c, 5}});
  later.key.round = 2;
  EXPECT_THAT(heard(later), HasSubstr("a contribution that this replica has not sent"));
  EXPECT_EQ(heard(chunk_0({}, {{a, 3}, {b, 4}, {c, 5}})), "accepted");
}

TEST_F(Rejecting, WithAQuorumWhoIsLateIsNotListed) {
  Member hasty{layout, codecs, {.least = 2, .quorum = 2, .reject = 2}, {{}, {}}};
  begin(hasty);
  EXPECT_EQ(hasty.receive(0, chunk_0({a, c}, {{a, 3}, {c, 900}})), std::nullopt)
      << "two norms have no median";
  EXPECT_THAT(hasty.receive(0, chunk_0({c}, {{c, 3}})).value_or("accepted"),
              HasSubstr("at least 2 are needed"));
}

TEST_F(ProtocolMember, NormsHaveNoPlaceWhereNothingIsRejected) {
  auto message = result(0, 0, 1, 98);
  message.norms = {{id("a"), 1}};
  EXPECT_THAT(refused(0, message), HasSubstr("norms in a run without outer.reject"));
}

// ---- several members ----

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

}  // namespace
}  // namespace isthmus::outer_sync::protocol
