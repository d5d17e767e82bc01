// Members that only reduce, scene by scene: they are not counted and not waited for, they need nothing of
// what was before them, and what they know goes on with the others.

#include <tuple>

#include "cluster.h"
#include "coordinator_support.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Reducers, OneIsInTheFirstViewAndOwnsAll) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cluster.at("a").member->view().owners, Each(1)) << "auto, with uplinks that nobody knows";
  EXPECT_EQ(cluster.at("c").member->view().members[2].slot, 1) << "it takes no share of the data";
  cluster.train(5);
  expect_equal(cluster, {"a", "b", "c"}, 5);
  EXPECT_EQ(cluster.at("a").rounds.at(5).contributed, 2U);
  EXPECT_THAT(cluster.at("b").rounds.at(5).included, Each(false));
  EXPECT_EQ(cluster.coordinator().participating(), 2U);
}

TEST(Reducers, TheFirstViewWaitsForOneThatIsToBeThereButNotForEver) {
  auto options = CoordinatorHarness::default_options(1);
  options.reducers = 1;
  auto reducer = CoordinatorHarness::hello("b");
  reducer.member.kind = MemberKind::reducer;
  CoordinatorHarness run(options);
  run.receive(1, CoordinatorHarness::hello("a"));
  EXPECT_EQ(run.count<Seal>(1), 0U) << "b may come in a moment";
  run.tick(1s);
  EXPECT_EQ(run.count<Seal>(1), 0U);
  run.receive(2, reducer);
  EXPECT_EQ(run.count<Seal>(1), 1U);
  EXPECT_EQ(run.count<Seal>(2), 1U);

  CoordinatorHarness alone(options);
  alone.receive(1, CoordinatorHarness::hello("a"));
  for (const Time later : {2s, 4s, 6s}) {
    alone.receive(1, Heartbeat{});
    alone.tick(later);
  }
  EXPECT_EQ(alone.count<Seal>(1), 1U) << "nobody else has come for longer than the detect time-out";
}

TEST(Reducers, OneAloneIsNoView) {
  Cluster cluster({"a", "c"}, 2, {}, {"b"});
  cluster.kill("a");
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("1 of at least 2 replicas are here")) << "a reducer is none";
}

TEST(Reducers, ALostOneIsReplacedByTheTrainers) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  cluster.train(2);
  cluster.contribute({"a"});  // to b, which is lost with it
  cluster.kill("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "c"));
  EXPECT_THAT(cluster.at("a").member->view().owners, ElementsAre(0, 1));
  cluster.contribute({"c"});
  expect_equal(cluster, {"a", "c"}, 3);
}

TEST(Reducers, WhatOnlyTheLostOneHadIsMadeAgain) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  cluster.cut("b", "a");
  cluster.cut("b", "c");
  cluster.train();
  EXPECT_EQ(cluster.round_of("b"), 1U) << "it has the results, and nobody else";
  cluster.kill("b");
  expect_equal(cluster, {"a", "c"}, 1);
}

TEST(Reducers, WhatItHasCommittedStaysWhenItStays) {
  Cluster cluster({"a", "c", "d"}, 1, {}, {"b"});
  cluster.cut("b", "a");
  cluster.cut("b", "c");
  cluster.cut("b", "d");
  cluster.train();
  const auto chain = cluster.chain_of("b");
  cluster.heal();
  cluster.kill("d");
  EXPECT_EQ(cluster.chain_of("a"), chain) << "of the contributions of three";
  expect_equal(cluster, {"a", "b", "c"}, 1);
}

TEST(Reducers, ANewOneEntersWhereTheRunIs) {
  Cluster cluster({"a", "c"});
  cluster.train(7);
  cluster.start_reducer("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  expect_equal(cluster, {"a", "b", "c"}, 7);
  cluster.train(2);
  expect_equal(cluster, {"a", "b", "c"}, 9);
}

TEST(Reducers, OneThatWasAwayEntersAnewWhateverItHad) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  cluster.train(2);
  cluster.isolate("b");
  cluster.pass(Cluster::detect_timeout + 1s);
  cluster.pass(Cluster::detect_timeout);
  EXPECT_THAT(cluster.view(), ElementsAre("a", "c"));
  for (const auto* name : {"a", "c"}) cluster.at(name).takes_part = true;
  cluster.contribute({"a", "c"});
  for (int i = 0; i < 9; ++i) cluster.contribute({"a", "c"});
  cluster.heal();
  cluster.reconnect("b");
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  expect_equal(cluster, {"a", "b", "c"}, cluster.round_of("a"));
  cluster.train(2);
  expect_equal(cluster, {"a", "b", "c"}, cluster.round_of("a"));
}

TEST(Reducers, OneIsNoHeirAndNoDonor) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  cluster.train(2);
  cluster.kill("a");
  cluster.kill("c");
  cluster.start("a");
  EXPECT_FALSE(cluster.at("a").admitted) << "b has no state to give";
  EXPECT_THAT(cluster.view(), IsEmpty());
}

// ---- what the coordinator makes of one ----

/// It has no model.
Hello reducer_hello() {
  auto hello = CoordinatorHarness::hello("b");
  hello.member.kind = MemberKind::reducer;
  hello.model = hello.tokenizer = {};
  return hello;
}

/// What one says that has been in no view.
Sealed blank() {
  Sealed sealed;
  sealed.view = 1;
  return sealed;
}

/// The first view of the reducer b, on connection 1, and the trainer c, on connection 2.
void begin_view(CoordinatorHarness& harness) {
  harness.receive(1, reducer_hello());
  harness.receive(2, CoordinatorHarness::hello("c"));
  harness.receive(1, blank());
  harness.receive(2, CoordinatorHarness::sealed());
  ASSERT_TRUE(harness.last<NewView>(1));
}

TEST(Reducers, ANewcomerTakesTheStateFromTrainersAlone) {
  CoordinatorHarness harness(1);
  harness.receive(1, reducer_hello());
  EXPECT_FALSE(harness.last<Seal>(1)) << "the run begins when those who train are there";
  harness.receive(2, CoordinatorHarness::hello("c"));
  harness.receive(2, CoordinatorHarness::sealed());
  EXPECT_FALSE(harness.last<NewView>(2)) << "b has not answered";
  harness.receive(1, blank());
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->layout.size(), 2U) << "it knows the layout from here alone";
  harness.receive(3, CoordinatorHarness::hello("d"));
  ASSERT_TRUE(harness.last<Admitted>(3));
  ASSERT_EQ(harness.last<Admitted>(3)->donors.size(), 1U);
  EXPECT_EQ(harness.last<Admitted>(3)->donors[0].name, "c");
}

TEST(Reducers, OneThatFallsSilentBeforeTheFirstViewHoldsNobodyUp) {
  CoordinatorHarness harness(1);
  harness.receive(1, reducer_hello());
  harness.receive(2, CoordinatorHarness::hello("c"));
  harness.receive(2, CoordinatorHarness::sealed());
  harness.close(1);
  EXPECT_TRUE(harness.last<NewView>(2));
}

TEST(Reducers, StopAndEndAreTheTrainers) {
  CoordinatorHarness harness(1);
  begin_view(harness);
  harness.receive(2, EvalReport{10, 20, 10});
  ASSERT_EQ(harness.evaluated.size(), 1U) << "it evaluates nothing";
  harness.stop("enough");
  harness.receive(2, Held{12});
  ASSERT_TRUE(harness.last<StopAt>(2)) << "it has no step";
  EXPECT_FALSE(harness.last<StopAt>(1)) << "it is needed until they have stopped";
  harness.receive(2, Done{"{}", digest_of(4)});
  EXPECT_FALSE(harness.ended) << "it has not said what it sent";
  ASSERT_TRUE(harness.last<StopAt>(1));
  harness.receive(1, Done{"{}", {}});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, Ended::How::finished) << "there is no hash of it to compare";
  EXPECT_TRUE(harness.last<Finished>(1)) << "it is told that the run is over";
}

TEST(Reducers, OneThatIsLostAtTheEndHoldsNobodyUp) {
  CoordinatorHarness harness(1);
  begin_view(harness);
  harness.receive(2, Done{"{}", digest_of(4)});
  harness.close(1);
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, Ended::How::finished);
}

TEST(Reducers, WhatIsNotTheirsToSayIsDropped) {
  CoordinatorHarness harness(1);
  for (const ControlMessage& message : {ControlMessage(Announce{"here"}), ControlMessage(Held{3}),
                                        ControlMessage(EvalReport{1, 2, 3}), ControlMessage(Ready{})}) {
    CoordinatorHarness one(1);
    one.receive(1, reducer_hello());
    one.receive(1, message);
    EXPECT_TRUE(one.closed.contains(1)) << message.index();
  }
  auto other = CoordinatorHarness::hello("o");
  other.member.kind = static_cast<MemberKind>(7);
  harness.receive(5, other);
  EXPECT_THAT(harness.refusal(5), HasSubstr("of kind 7, of which there are no members"));
  CoordinatorHarness rigid(CoordinatorHarness::rigid(2));
  rigid.receive(1, reducer_hello());
  EXPECT_THAT(rigid.refusal(1), HasSubstr("data-parallel"));
}

TEST(Reducers, TheKeysAreComparedAndTheModelIsNot) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("c"));
  auto odd = reducer_hello();
  odd.config[0].second = "60";
  harness.receive(2, odd);
  EXPECT_THAT(harness.refusal(2), HasSubstr("outer.sync_every"));
  harness.receive(3, reducer_hello());
  EXPECT_EQ(harness.refusal(3), "");
}

// ---- the plan of a view ----

const FragmentLayout layout({{0, 64}}, 16);

SealedMember standing(const std::string& name, MemberKind kind, ViewNumber activated, Round round,
                      std::uint8_t history = 0) {
  SealedMember out;
  out.info = {name, 1, name, 0, kind};
  out.sealed.view = activated + 1;
  out.sealed.activated = activated;
  out.sealed.fragments = {{round, digest_of(static_cast<std::uint8_t>(history + round))}};
  out.sealed.ledger = {FragmentLedger(round)};
  out.sealed.history.resize(1);
  for (Round r = round > 15 ? round - 15 : 0; r < round; ++r)
    out.sealed.history[0].push_back({r, digest_of(static_cast<std::uint8_t>(history + r))});
  return out;
}

TEST(PlanView, OneThatOnlyReducesIsNeverDisplacedForItsRounds) {
  const std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 4, 20),
                                             standing("b", MemberKind::reducer, 3, 12, 100)};
  const auto plan = plan_view(layout, members);
  EXPECT_THAT(plan.displaced, IsEmpty());
  EXPECT_THAT(plan.message.applied, ElementsAre(ElementsAre(20U), ElementsAre(20U)))
      << "it begins where the run is";
}

TEST(PlanView, WhatOnlyAReducerKnowsSendsNoTrainerAway) {
  // b is nine rounds ahead, and nobody keeps the results that a would need.
  const std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 4, 3),
                                             standing("b", MemberKind::reducer, 4, 12)};
  const auto plan = plan_view(layout, members);
  ASSERT_EQ(plan.displaced.size(), 1U);
  EXPECT_EQ(plan.displaced[0].name, "b");
  ASSERT_EQ(plan.message.view.members.size(), 1U);
  EXPECT_EQ(plan.message.view.members[0].name, "a");
}

void hold(SealedMember& member, Round round) {
  ChunkSet all(4);
  for (std::size_t i = 0; i < 4; ++i) all.add(i);
  member.sealed.held.push_back({0, round, all});
}

TEST(PlanView, AViewThatHasBegunAtNoTrainerIsNoReference) {
  // b has applied round 21, which a was to get in view 4; c began that one at round 20 and keeps nothing.
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 21),
                                       standing("c", MemberKind::reducer, 4, 20)};
  hold(members[1], 21);
  const auto plan = plan_view(layout, members);
  EXPECT_THAT(plan.displaced, IsEmpty());
  EXPECT_EQ(plan.message.reference, 3U);
  EXPECT_THAT(plan.message.applied, ElementsAre(ElementsAre(20U), ElementsAre(21U), ElementsAre(21U)));
}

TEST(PlanView, WhatATrainerHasAppliedOfTheRunItHandsOnWhereOnlyANewcomerHasBegunTheLastView) {
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 18),
                                       standing("n", MemberKind::trainer, 4, 20)};
  for (const Round round : {19, 20, 21}) hold(members[0], round);
  auto plan = plan_view(layout, members);
  EXPECT_THAT(plan.displaced, IsEmpty()) << "n began at round 20 and keeps nothing; a keeps what b lacks";
  ASSERT_EQ(plan.message.fixed.size(), 2U) << "round 21 is not applied, so it may have been made again";
  EXPECT_EQ(plan.message.fixed[0].round, 19U);
  EXPECT_EQ(plan.message.fixed[1].round, 20U);
  ASSERT_EQ(plan.message.fixed[1].holders.size(), 1U);
  EXPECT_EQ(plan.message.fixed[1].holders[0].first, 0U);

  // One that only reduces forgets all when it begins anew.
  members[0].info.kind = MemberKind::reducer;
  plan = plan_view(layout, members);
  ASSERT_EQ(plan.displaced.size(), 1U);
  EXPECT_EQ(plan.displaced[0].name, "b");
}

/// Each owns one of two fragments and has closed its chunks without the other, until their results were not
/// kept.
const FragmentLayout two_fragments({{0, 64}, {64, 64}}, 16);

SealedMember standing_in_two(const std::string& name, ViewNumber activated, Round first, Round second) {
  auto member = standing(name, MemberKind::trainer, activated, first);
  const auto other = standing(name, MemberKind::trainer, activated, second);
  member.sealed.fragments.push_back(other.sealed.fragments[0]);
  member.sealed.history.push_back(other.sealed.history[0]);
  member.sealed.ledger.push_back(other.sealed.ledger[0]);
  return member;
}

TEST(PlanView, WhereEachLacksWhatNobodyKeepsTheForemostGoesOn) {
  const std::vector<SealedMember> members = {standing_in_two("a", 4, 33, 27),
                                             standing_in_two("b", 4, 28, 33)};
  const auto plan = plan_view(two_fragments, members);
  ASSERT_EQ(plan.message.view.members.size(), 1U) << "else nobody is left who has the state";
  EXPECT_EQ(plan.message.view.members[0].name, "b");
  ASSERT_EQ(plan.displaced.size(), 1U);
  EXPECT_EQ(plan.displaced[0].name, "a");
}

TEST(PlanView, WhereEachLacksWhatNobodyKeepsANewcomerThatHasTakenItFromBothGoesOn) {
  std::vector<SealedMember> members = {standing_in_two("a", 4, 33, 27), standing_in_two("b", 4, 28, 33),
                                       standing_in_two("c", 0, 33, 33), standing_in_two("d", 0, 33, 33)};
  members[0].sealed.step = 400;
  for (auto& member : members) member.sealed.settings.changes = {{100, {{"outer.optimizer.lr", ".5"}}}};
  const auto settings = members[0].sealed.settings;
  for (const std::size_t newcomer : {2, 3}) {
    auto& sealed = members[newcomer].sealed;
    sealed.history.assign(2, {});
    sealed.settings = {};
    sealed.ledger = {FragmentLedger(0), FragmentLedger(0)};  // it learns it with its first view
    hold(members[newcomer], 34);  // applied nowhere: it drops that when the view begins
  }
  const auto plan = plan_view(two_fragments, members);
  ASSERT_EQ(plan.message.view.members.size(), 2U);
  EXPECT_EQ(plan.message.view.members[0].name, "c");
  EXPECT_EQ(plan.message.view.members[1].name, "d");
  EXPECT_EQ(plan.displaced.size(), 2U);
  EXPECT_EQ(plan.message.reference, 4U);
  EXPECT_EQ(plan.message.step, 400U);
  EXPECT_EQ(plan.message.settings, settings);
  EXPECT_TRUE(ledger_fits(plan.message.ledger, members[2].sealed.fragments));
  EXPECT_THAT(plan.message.fixed, IsEmpty());
  for (FragmentId p = 0; p < 2; ++p) {
    EXPECT_EQ(plan.message.chains[p].back(), members[2].sealed.fragments[p]);
    EXPECT_GT(plan.message.chains[p].size(), 1U) << "by which those who are displaced are known again";
  }

  // Of another history it has nothing to go on with.
  for (const std::size_t newcomer : {2, 3}) members[newcomer].sealed.fragments[1].chain = digest_of(1);
  const auto without = plan_view(two_fragments, members);
  ASSERT_EQ(without.message.view.members.size(), 1U);
  EXPECT_EQ(without.message.view.members[0].name, "b");
}

TEST(PlanView, WhatANewcomerDoesNotKnowOfTheHistoryTheOthersTell) {
  std::vector<SealedMember> members = {standing("a", MemberKind::trainer, 3, 20),
                                       standing("b", MemberKind::trainer, 3, 18),
                                       standing("n", MemberKind::trainer, 4, 20)};
  members[2].sealed.history[0].clear();
  for (const Round round : {19, 20}) hold(members[0], round);
  const auto plan = plan_view(layout, members);
  EXPECT_THAT(plan.displaced, IsEmpty()) << "b is at a round that led to where n began";
  ASSERT_EQ(plan.message.chains[0].size(), Member::history_length);
  EXPECT_EQ(plan.message.chains[0].back(), members[2].sealed.fragments[0]);
  EXPECT_EQ(plan.message.chains[0].front().round, 5U);

  // Another round 20 has another history.
  members[0] = standing("a", MemberKind::trainer, 3, 20, 100);
  EXPECT_EQ(plan_view(layout, members).message.chains[0].size(), 1U);
  EXPECT_EQ(plan_view(layout, members).displaced.size(), 2U);
}

TEST(LayoutOf, AStrangersWordIsChecked) {
  EXPECT_TRUE(layout_of(std::vector<Range>{{0, 64}}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 64}}, 0));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 1ULL << 50}}, 16));
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 1ULL << 40}}, 1)) << "too many chunks to list";
  EXPECT_FALSE(layout_of(std::vector<Range>{{0, 64}, {32, 64}}, 16));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
