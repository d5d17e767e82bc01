// Reducers, scene by scene: they are not counted and not waited for, they need no earlier state, and the
// others continue with their results.

#include "cluster.h"
#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Reducers, OneIsInTheFirstViewAndOwnsAll) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  EXPECT_THAT(cluster.view(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cluster.at("a").member->view().owners, Each(1)) << "topology auto, with unknown uplinks";
  EXPECT_EQ(cluster.at("c").member->view().members[2].slot, 1) << "a reducer takes no share of the data";
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
  EXPECT_EQ(alone.count<Seal>(1), 1U) << "no other member has come for longer than the detect time-out";
}

TEST(Reducers, OneAloneIsNoView) {
  Cluster cluster({"a", "c"}, 2, {}, {"b"});
  cluster.kill("a");
  EXPECT_THAT(cluster.view(), IsEmpty());
  EXPECT_TRUE(cluster.was_said("1 of at least 2 replicas are here"))
      << "a reducer does not count as a replica";
}

TEST(Reducers, ALostOneIsReplacedByTheTrainers) {
  Cluster cluster({"a", "c"}, 1, {}, {"b"});
  cluster.train(2);
  cluster.contribute({"a"});  // sent to b and lost with it
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
  EXPECT_EQ(cluster.round_of("b"), 1U) << "only b has the results";
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
  EXPECT_EQ(cluster.chain_of("a"), chain) << "results that three members contributed to";
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

// ---- reducers at the coordinator ----

/// A Hello without a model.
Hello reducer_hello() {
  auto hello = CoordinatorHarness::hello("b");
  hello.member.kind = MemberKind::reducer;
  hello.model = hello.tokenizer = {};
  return hello;
}

/// The answer to a Seal of a reducer that was in no view.
Sealed blank() {
  Sealed sealed;
  sealed.view = 1;
  return sealed;
}

/// Begins the first view with the reducer b on connection 1 and the trainer c on connection 2.
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
  EXPECT_FALSE(harness.last<Seal>(1)) << "the run begins when the trainers are there";
  harness.receive(2, CoordinatorHarness::hello("c"));
  harness.receive(2, CoordinatorHarness::sealed());
  EXPECT_FALSE(harness.last<NewView>(2)) << "b has not answered";
  harness.receive(1, blank());
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->layout.size(), 2U) << "a reducer gets the layout only from the view";
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

SharedBytes filled_with(std::uint8_t value) { return std::make_shared<const Bytes>(64, std::byte{value}); }

/// Both trainers resume at round 7, with the result of round 8 in their checkpoints.
InitialState resumed_with_a_round_in_flight() {
  InitialState initial{.fragments = {{7, digest_of(7)}}};
  FragmentLedger ledger;
  for (std::uint64_t round = 0; round < 7; ++round) ledger.add({{0, round * 10, round * 10 + 10}});
  initial.ledger = {ledger};
  initial.decided = {{.fragment = 0,
                      .round = 8,
                      .results = {filled_with(1), filled_with(2)},
                      .samples = {{0, 70, 80}, {1, 0, 10}}}};
  return initial;
}

TEST(Reducers, AfterAResumeOneGetsTheRoundsThatWereInFlight) {
  for (const double reject : {0.0, 4.0}) {
    ClosingRule closing;
    closing.reject = reject;
    Cluster cluster({"a", "c"}, 1, closing, {"b"}, resumed_with_a_round_in_flight());
    for (const auto* name : {"a", "c"}) cluster.apply(name);
    expect_equal(cluster, {"a", "b", "c"}, 8);
    EXPECT_EQ(cluster.ledger("b"), cluster.ledger("a"));
    cluster.train(3);
    expect_equal(cluster, {"a", "b", "c"}, 11);
    EXPECT_EQ(cluster.ledger("b"), cluster.ledger("a"));
  }
}

TEST(Reducers, OneThatComesAfterAResumeGetsThemToo) {
  Cluster cluster({"a", "c"}, 1, {}, {}, resumed_with_a_round_in_flight());
  cluster.start_reducer("b");
  for (const auto* name : {"a", "c"}) cluster.apply(name);
  expect_equal(cluster, {"a", "b", "c"}, 8);
  cluster.train(3);
  expect_equal(cluster, {"a", "b", "c"}, 11);
}

TEST(Reducers, StopAndEndAreTheTrainers) {
  CoordinatorHarness harness(1);
  begin_view(harness);
  harness.receive(2, EvalReport{10, 20, 10});
  ASSERT_EQ(harness.evaluated.size(), 1U) << "a reducer evaluates nothing";
  harness.stop("enough");
  harness.receive(2, Held{12});
  ASSERT_TRUE(harness.last<StopAt>(2)) << "a reducer has no step";
  EXPECT_FALSE(harness.last<StopAt>(1)) << "it is needed until the trainers have stopped";
  harness.receive(2, Done{"{}", digest_of(4)});
  EXPECT_FALSE(harness.ended) << "the reducer has not reported what it sent";
  ASSERT_TRUE(harness.last<StopAt>(1));
  harness.receive(1, Done{"{}", {}});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, Ended::How::finished) << "a reducer has no hash to compare";
  EXPECT_TRUE(harness.last<Finished>(1)) << "it must be notified that the run is over";
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
  EXPECT_THAT(harness.refusal(5), HasSubstr("of member kind 7; expected"));
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

}  // namespace
}  // namespace isthmus::outer_sync::protocol
