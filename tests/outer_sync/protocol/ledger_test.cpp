// Training samples: each is in the ledger once, regardless of which members come and go, and is free again if
// its contribution is lost.

#include "isthmus/outer_sync/protocol/ledger.h"

#include <gtest/gtest.h>

#include "cluster.h"
#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "isthmus/outer_sync/protocol/work_order.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::HasSubstr;

// ---- one fragment's ledger ----

TEST(FragmentLedger, CountsWhatIsInRoundsAndNamesWhatIsThereTwice) {
  FragmentLedger ledger;
  ledger.add({{0, 0, 4}, {1, 0, 4}});
  ledger.add({{0, 4, 8}, {1, 2, 6}});
  EXPECT_EQ(ledger.round(), 2U);
  EXPECT_EQ(ledger.done(), SampleSet({{0, 0, 8}, {1, 0, 6}}));
  EXPECT_EQ(ledger.twice(), SampleSet({{1, 2, 4}}));
}

TEST(FragmentLedger, GoesBackAFewRounds) {
  FragmentLedger ledger;
  constexpr std::uint64_t rounds = 3 * FragmentLedger::max_pending_ranges;
  for (std::uint64_t r = 0; r < rounds; ++r) ledger.add({{0, r, r + 1}});
  EXPECT_FALSE(ledger.cut(rounds + 1)) << "a ledger cannot be cut to a round that it does not have";
  EXPECT_FALSE(ledger.cut(rounds - FragmentLedger::max_pending_ranges - 1));
  EXPECT_EQ(ledger.done().size(), rounds) << "a refused cut must change nothing";
  ASSERT_TRUE(ledger.cut(rounds - FragmentLedger::max_pending_ranges));
  EXPECT_EQ(ledger.done(), SampleSet({{0, 0, rounds - FragmentLedger::max_pending_ranges}}));
}

TEST(FragmentLedger, IsTheSameHoweverItsRoundsAreKept) {
  FragmentLedger longer, cut;
  for (std::uint64_t r = 0; r < 12; ++r) {
    longer.add({{0, r, r + 1}});
    cut.add({{0, r, r + 1}});
  }
  cut.add({{5, 0, 9}});
  ASSERT_TRUE(cut.cut(12));
  EXPECT_EQ(longer, cut);
  EXPECT_EQ(from_bytes<FragmentLedger>(to_bytes(longer)), longer);
  longer.skip();
  cut.add({});
  EXPECT_NE(longer, cut) << "an unknown round must differ from an empty one";
}

// ---- which member gets which samples ----

NewView view_of(const std::vector<std::uint16_t>& slots, std::uint64_t tracks, const SampleSet& done = {}) {
  NewView view;
  for (const auto slot : slots)
    view.view.members.push_back({std::string(1, static_cast<char>(97 + slot)), 1, "", slot});
  view.tracks = tracks;
  view.reserved.resize(slots.size());
  view.ledger.resize(1);
  view.ledger.front().add(done.ranges());
  return view;
}

TEST(WorkOrder, WithAllHereEveryoneHasItsOwnTrackInOrder) {
  WorkOrder order;
  order.deal(view_of({0, 1, 2}, 3), 1);
  EXPECT_EQ(order.next(8), (SampleRange{1, 0, 8}));
  EXPECT_EQ(order.next(5), (SampleRange{1, 8, 13}));
}

TEST(WorkOrder, WhatNobodyHasIsDealtToAllAndTracksGoOnAtOnePace) {
  const auto view = view_of({0, 2, 3}, 4, SampleSet({{1, 0, 500}}));
  std::vector<WorkOrder> orders(3);
  SampleSet given, twice;
  constexpr std::uint64_t each = 4 * 4 * WorkOrder::block;  // a few turns
  for (MemberIndex m = 0; m < 3; ++m) {
    orders[m].deal(view, m);
    for (std::uint64_t left = each; left > 0;) {
      const auto range = orders[m].next(std::min<std::uint64_t>(left, 100));
      given.add(range, &twice);
      left -= range.size();
    }
  }
  EXPECT_TRUE(twice.empty());
  // Three of every four blocks that a trainer gets are from its own track.
  EXPECT_EQ(
      given,
      SampleSet(
          {{0, 0, each / 4 * 3}, {1, 500, 500 + each / 4 * 3}, {2, 0, each / 4 * 3}, {3, 0, each / 4 * 3}}));
}

TEST(WorkOrder, BetweenASealAndItsViewItGetsOfItsOwnTrackAlone) {
  WorkOrder order;
  const auto view = view_of({0}, 2);
  order.deal(view, 0);
  EXPECT_EQ(order.next(WorkOrder::block), (SampleRange{0, 0, WorkOrder::block}));
  EXPECT_EQ(order.next(10), (SampleRange{1, 0, 10}));
  Sealed sealed;
  sealed.ledger.resize(1);
  sealed.ledger.front().add({{0, 0, 24}});
  order.seal(sealed);
  EXPECT_EQ(sealed.taken, SampleSet({{0, 24, WorkOrder::block}, {1, 0, 10}}));
  EXPECT_EQ(sealed.reserved, SampleSet({{0, WorkOrder::block, 17 * WorkOrder::block}}));
  const auto own = order.next(7);
  EXPECT_EQ(own, (SampleRange{0, WorkOrder::block, WorkOrder::block + 7}));
  // The samples it got meanwhile are not free for another trainer that has the track now.
  auto next = view_of({0}, 2, SampleSet({{0, 0, 24}}));
  next.taken = sealed.taken;
  next.reserved = {sealed.reserved};
  WorkOrder other;
  auto moved = view_of({0, 1}, 2, SampleSet({{0, 0, 24}}));
  moved.taken = sealed.taken;
  moved.reserved = {{}, sealed.reserved};
  other.deal(moved, 0);
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(SampleSet({other.next(WorkOrder::block)}).common(SampleSet({own})).empty());
  order.deal(next, 0);
  EXPECT_EQ(order.next(1), (SampleRange{0, WorkOrder::block + 7, WorkOrder::block + 8}));
}

TEST(WorkOrder, GapsOfItsTrackComeFirst) {
  WorkOrder order;
  order.deal(view_of({0, 1}, 2, SampleSet({{0, 0, 5}, {0, 9, 12}})), 0);
  EXPECT_EQ(order.next(100), (SampleRange{0, 5, 9}));
  EXPECT_EQ(order.next(100), (SampleRange{0, 12, 112}));
}

TEST(WorkOrder, MoreReplicasThanPlannedLeaveNothingToOthers) {
  WorkOrder order;
  order.deal(view_of({0, 1}, 2), 0);  // slots from 2 on existed and are gone
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order.next(WorkOrder::block).track, 0U);
}

// ---- runs ----

void expect_equal_ledgers(Cluster& cluster, const std::vector<std::string>& names) {
  for (const auto& name : names)
    EXPECT_EQ(cluster.ledger(name), cluster.ledger(names.front())) << name << " and " << names.front();
}

TEST(LedgerOfARun, WithoutFaultsHasEverythingOnce) {
  Cluster cluster({"a", "b", "c"}, 1, {}, {"r"});
  cluster.train(5);
  expect_equal_ledgers(cluster, {"a", "b", "c", "r"});
  const auto end = 5 * Cluster::samples_per_round;
  EXPECT_EQ(done_everywhere(cluster.ledger("a")), SampleSet({{0, 0, end}, {1, 0, end}, {2, 0, end}}));
  EXPECT_TRUE(done_twice(cluster.ledger("a")).empty());
  EXPECT_EQ(unknown_rounds(cluster.ledger("a")), 0U);
}

TEST(LedgerOfARun, WhatALostMemberHadUnderWayIsGivenToOthers) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(2);
  const auto lost = cluster.draw("c", 100);
  EXPECT_EQ(lost, (SampleRange{2, 8, 108}));
  cluster.kill("c");
  for (int i = 0; i < 8; ++i) {
    for (const auto* name : {"a", "b"}) cluster.draw(name, WorkOrder::block);
    cluster.train();
  }
  expect_equal_ledgers(cluster, {"a", "b"});
  const auto done = done_everywhere(cluster.ledger("a"));
  EXPECT_TRUE(done_twice(cluster.ledger("a")).empty());
  EXPECT_TRUE(without(SampleSet({lost}), done).empty()) << "no sample may be left out";
  const auto frontier = done.common(SampleSet({{2, 0, WorkOrder::endless}})).ranges();
  ASSERT_EQ(frontier.size(), 1U) << "the track must have no gap";
  EXPECT_GT(frontier.front().end, WorkOrder::block) << "the track must advance like the others";
}

TEST(LedgerOfARun, WhoComesBackGoesOnWhereItsTrackIs) {
  Cluster cluster({"a", "b", "c"});
  cluster.train(2);
  cluster.kill("c");
  for (int i = 0; i < 5; ++i) {
    for (const auto* name : {"a", "b"}) cluster.draw(name, WorkOrder::block);
    cluster.train();
  }
  cluster.start("c");
  cluster.learn("c", "a");
  ASSERT_TRUE(cluster.at("c").takes_part);
  cluster.train(3);
  expect_equal_ledgers(cluster, {"a", "b", "c"});
  EXPECT_TRUE(done_twice(cluster.ledger("c")).empty());
  EXPECT_EQ(unknown_rounds(cluster.ledger("c")), 0U) << "its first view must give it the whole ledger";
  EXPECT_EQ(cluster.draw("c", 1).track, 2U);
}

TEST(LedgerOfARun, WhatIsLeftOutComesWithTheNextRound) {
  Cluster cluster({"a", "b", "c"}, 1, {.quorum = 2});
  cluster.cut("c", "a");  // c owns chunk 0
  cluster.train();
  cluster.pass(200ms);
  ASSERT_EQ(cluster.round_of("c"), 1U);
  const SampleSet first({{2, 0, Cluster::samples_per_round}});
  EXPECT_TRUE(done_everywhere(cluster.ledger("a")).common(first).empty());
  cluster.heal();
  cluster.train();
  expect_equal_ledgers(cluster, {"a", "b", "c"});
  EXPECT_EQ(done_everywhere(cluster.ledger("a")).common(first), first);
  EXPECT_TRUE(done_twice(cluster.ledger("a")).empty());
}

// ---- rounds that are committed when a view ends ----

/// Two fragments of two chunks. Members a and b hold results of the next rounds, to which c contributed too.
class DecidedRounds : public testing::Test {
 protected:
  static constexpr ReplicaId lost = 3;
  static SealedMember sealed(const std::string& name) {
    SealedMember member;
    member.info = {name, 1, "", 0};
    member.sealed.view = 2;
    member.sealed.activated = 1;
    member.sealed.layout = {{0, 32}, {32, 32}};
    member.sealed.chunk_elements = 16;
    member.sealed.fragments.resize(2);
    member.sealed.history.resize(2);
    member.sealed.ledger.resize(2);
    return member;
  }
  static HeldResults of(FragmentId fragment, std::initializer_list<std::size_t> chunks,
                        std::vector<ReplicaId> contributors = {1, 2, lost}) {
    HeldResults held{fragment, 1, ChunkSet(2), {}, std::move(contributors)};
    for (const auto chunk : chunks) held.chunks.add(chunk);
    if (held.chunks.has(0)) held.trained_on = {{1, {0, 0, 4}}, {lost, {2, 0, 4}}};
    return held;
  }
  /// The samples of the lost member's track that the next view withholds.
  SampleSet taken_of_the_lost() {
    for (const auto& member : members) EXPECT_EQ(problem_of(member.sealed, {.layout = &layout}), "");
    return plan_view(layout, members).message.taken.common(SampleSet({{2, 0, 1000}}));
  }
  FragmentLayout layout{{{0, 32}, {32, 32}}, 16};
  std::vector<SealedMember> members{sealed("a"), sealed("b")};
  std::vector<HeldResults>& of_a = members[0].sealed.held;
  std::vector<HeldResults>& of_b = members[1].sealed.held;
  const SampleSet all{{{2, 0, 4}}};
};

TEST_F(DecidedRounds, OfEveryFragmentAreTaken) {
  of_a = {of(0, {0, 1}), of(1, {0, 1})};
  EXPECT_EQ(taken_of_the_lost(), all);
}

TEST_F(DecidedRounds, OfWhichNoMemberHasAllAreTaken) {
  of_a = {of(0, {0, 1}), of(1, {1})};
  of_b = {of(1, {0})};
  EXPECT_EQ(taken_of_the_lost(), all);
}

TEST_F(DecidedRounds, ThatSomeHaveAppliedAreTakenTogetherWithThoseThatNobodyHas) {
  members[1].sealed.fragments[0] = {1, {}};
  members[1].sealed.history[0] = {{0, {}}};
  members[1].sealed.ledger[0].add({{2, 0, 4}});
  of_a = {of(1, {0, 1})};
  of_b = {of(0, {0, 1})};
  of_b[0].trained_on.clear();
  EXPECT_EQ(taken_of_the_lost(), all);
}

TEST_F(DecidedRounds, OfOneFragmentLeaveFreeWhatTheOthersLack) {
  of_a = {of(0, {0, 1})};
  EXPECT_TRUE(taken_of_the_lost().empty());
}

TEST_F(DecidedRounds, OfWhichAChunkIsMadeAgainLeaveItFree) {
  of_a = {of(0, {0, 1}), of(1, {0})};
  EXPECT_TRUE(taken_of_the_lost().empty());
}

TEST_F(DecidedRounds, ThatLeftTheLostOutOfAChunkLeaveItFree) {
  of_a = {of(0, {0, 1}), of(1, {1}, {1, 2})};
  of_b = {of(1, {0})};
  EXPECT_TRUE(taken_of_the_lost().empty());
}

TEST_F(DecidedRounds, OfAViewThatWasLeftBehindLeaveItFree) {
  of_a = {of(0, {0, 1})};
  of_b = {of(1, {0, 1})};
  members[1].sealed.activated = 0;
  EXPECT_TRUE(taken_of_the_lost().empty());
}

// ---- false reports ----

class WrongSamples : public testing::Test {
 protected:
  WrongSamples() {
    NewView view{.view = {1, {{"a", 1, "", 0}, {"b", 1, "", 1}}, {0, 1}},
                 .token = {},
                 .layout = {},
                 .reference = 0,
                 .step = 0,
                 .chains = {{{}}},
                 .fixed = {},
                 .applied = {{0}, {0}},
                 .ledger = Ledger(1),
                 .reserved = std::vector<SampleSet>(2)};
    EXPECT_TRUE(owner.seal(1) && other.seal(1));
    EXPECT_EQ(owner.activate(view, 0), Member::Entry::begun);
    EXPECT_EQ(other.activate(view, 1), Member::Entry::begun);
  }
  static ReplicaId id(const std::string& name) { return id_of({name, 1, "", 0}); }
  ChunkMessage chunk(ChunkId k, MemberIndex sender, ChunkKind kind, std::vector<TrainedOn> samples) const {
    ChunkMessage message{.view = 1,
                         .key = {1, k, sender, kind},
                         .bytes = std::make_shared<Bytes>(4 * layout.chunk(k).size),
                         .weight = kind == ChunkKind::contribution ? 1ULL : 0ULL};
    message.trained_on = std::move(samples);
    return message;
  }
  std::string of_contribution(ChunkId k, std::vector<TrainedOn> samples) {
    return (k == 0 ? owner : other)
        .receive(k == 0 ? 1 : 0, chunk(k, k == 0 ? 1 : 0, ChunkKind::contribution, std::move(samples)))
        .value_or("accepted");
  }
  std::string of_result(std::vector<TrainedOn> samples) {
    return other.receive(0, chunk(0, 0, ChunkKind::result, std::move(samples))).value_or("accepted");
  }

  FragmentLayout layout{{{0, 32}}, 16};
  CodecPlan codecs{.codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::fp32}};
  Member owner{layout, codecs, {}, {{}}}, other{layout, codecs, {}, {{}}};
};

TEST_F(WrongSamples, OfAContributionAreRefused) {
  EXPECT_THAT(of_contribution(0, {{id("a"), {0, 0, 4}}}), HasSubstr("another member"));
  EXPECT_THAT(of_contribution(0, {{id("b"), {1, 4, 4}}}), HasSubstr("invalid training samples"));
  EXPECT_THAT(of_contribution(0, {{id("b"), {1, 0, ~0ULL}}}), HasSubstr("invalid training samples"));
  EXPECT_THAT(of_contribution(0, {{id("b"), {1ULL << 40, 0, 4}}}), HasSubstr("invalid training samples"));
  EXPECT_THAT(of_contribution(0, std::vector<TrainedOn>(max_trained_on + 1, {id("b"), {1, 0, 4}})),
              HasSubstr("invalid training samples"));
  EXPECT_THAT(of_contribution(1, {{id("a"), {0, 0, 4}}}), HasSubstr("not the first of its fragment"));
  EXPECT_EQ(of_contribution(0, {{id("b"), {1, 0, 4}}}), "accepted");
}

TEST_F(WrongSamples, OfAResultAreRefused) {
  auto bytes = std::make_shared<Bytes>(4 * layout.chunk(0).size);
  other.contribute(0, 1, bytes, 1, 0, SampleSet({{1, 0, 4}}));
  const TrainedOn a{id("a"), {0, 0, 4}}, b{id("b"), {1, 0, 4}};
  EXPECT_THAT(of_result({a}), HasSubstr("other samples for this replica's"));
  EXPECT_THAT(of_result({a, {id("b"), {1, 0, 5}}}), HasSubstr("other samples for this replica's"));
  EXPECT_THAT(of_result({b, a}), HasSubstr("not trainers of the view, in member order"));
  EXPECT_THAT(of_result({a, {id("z"), {1, 0, 4}}}), HasSubstr("not trainers of the view"));
  EXPECT_EQ(of_result({a, b}), "accepted");
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
