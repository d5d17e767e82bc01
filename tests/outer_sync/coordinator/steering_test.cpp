// Operators' requests to a coordinator: changes come with a view, at a step that no member can have passed.

#include <optional>

#include "steering_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Steering : public ::testing::Test {
 protected:
  void SetUp() override {
    run.run_all({"a", "b"});
    ASSERT_TRUE(run.last<NewView>(1));
  }
  /// Both answer the newest Seal, with the steps that their clocks can reach.
  void seal(std::uint64_t a, std::uint64_t b) {
    for (const auto& [connection, reach] : {std::pair<ConnectionId, std::uint64_t>{1, a}, {2, b}}) {
      auto answer = CoordinatorHarness::sealed();
      answer.view = run.last<Seal>(connection)->view;
      const auto view = run.last<NewView>(connection);
      answer.activated = view->view.number;
      answer.settings = view->settings;
      answer.reach = reach;
      run.receive(connection, answer);
    }
  }
  void beat(ConnectionId connection) {
    Heartbeat beat;
    beat.view = run.last<NewView>(connection)->view.number;
    beat.step = 10;
    run.receive(connection, beat);
  }
  [[nodiscard]] const Settings& settings() const { return run.coordinator.settings(); }
  [[nodiscard]] std::string problem(ConnectionId to = operator_connection) const {
    const auto answer = run.last<Answer>(to);
    return answer ? answer->problem : "no answer";
  }

  CoordinatorHarness run{steerable_options(2)};
};

TEST_F(Steering, AChangeHoldsFromAStepThatNobodyCanBePast) {
  run.receive(operator_connection, operator_command("set", {"outer.sync_every=60"}));
  EXPECT_EQ(run.count<Answer>(operator_connection), 0U) << "the change has begun at no member yet";
  seal(40, 47);
  const auto view = run.last<NewView>(1);
  ASSERT_THAT(view->settings.changes, SizeIs(1));
  EXPECT_EQ(view->settings.changes[0], (Change{47, {{"outer.sync_every", "60"}}}));
  EXPECT_EQ(run.last<NewView>(2)->settings, view->settings);
  EXPECT_EQ(run.count<Answer>(operator_connection), 0U);
  beat(2);
  EXPECT_THAT(problem(), IsEmpty());
  EXPECT_THAT(run.last<Answer>(operator_connection)->text, HasSubstr(R"("after_step":47)"));
  EXPECT_TRUE(run.closed.contains(operator_connection));
}

TEST_F(Steering, AStepThatIsNamedIsTakenOrRefused) {
  auto late = operator_command("set", {"outer.sync_every=60"});
  late.at = 100;
  run.receive(operator_connection, late);
  seal(40, 47);
  EXPECT_EQ(settings().changes.at(0).step, 100U);
  auto early = late;
  early.at = 120;
  run.receive(51, early);
  seal(140, 130);
  EXPECT_THAT(problem(51), HasSubstr("the earliest possible step is 140"));
  EXPECT_THAT(settings().changes, SizeIs(1));
}

TEST_F(Steering, ChangesNeverGoBack) {
  auto first = operator_command("set", {"outer.sync_every=60"});
  first.at = 300;
  run.receive(operator_connection, first);
  seal(40, 47);
  run.receive(51, operator_command("set", {"outer.optimizer.lr=0.5"}));
  seal(80, 90);
  EXPECT_EQ(settings().changes.at(1).step, 300U)
      << "otherwise the changes would not be in the order of their steps";
  EXPECT_TRUE(settings().sound());
}

TEST_F(Steering, NothingIsChangedAtTheEnd) {
  run.receive(operator_connection, operator_command("set", {"outer.sync_every=60"}));
  seal(990, 1003);
  EXPECT_THAT(problem(), HasSubstr("the run ends at step 1000"));
  EXPECT_THAT(settings().changes, IsEmpty());
}

TEST_F(Steering, WhatTheRunRefusesIsSaidAtOnce) {
  run.receive(operator_connection, operator_command("set", {"model.dim=64"}));
  EXPECT_THAT(problem(), HasSubstr("model.dim cannot be set in mid-run"));
  EXPECT_EQ(run.last<Seal>(1)->view, 1U) << "a refused change must not change the view";
  run.receive(51, operator_command("set", {"nonsense"}));
  EXPECT_THAT(problem(51), HasSubstr("expected at least one KEY=VALUE"));
  run.receive(52, operator_command("fly"));
  EXPECT_THAT(problem(52), HasSubstr("unknown command 'fly'"));
  auto other = operator_command("pause");
  other.run = "run-2";
  run.receive(53, other);
  EXPECT_THAT(problem(53), HasSubstr("this is run 'run-1'"));
}

TEST_F(Steering, AViewThatBeganNowhereIsAskedForOnceMore) {
  run.receive(operator_connection, operator_command("set", {"outer.sync_every=60"}));
  seal(40, 47);
  ASSERT_THAT(settings().changes, SizeIs(1));
  // The next Seal comes before the view has begun at any member: both answer as members of the first view.
  run.receive(1, Evicted{"another history"});
  auto answer = CoordinatorHarness::sealed();
  answer.view = run.last<Seal>(2)->view;
  answer.activated = 1;
  answer.reach = 55;
  run.receive(2, answer);
  ASSERT_THAT(settings().changes, SizeIs(1));
  EXPECT_EQ(settings().changes[0].step, 55U) << "no member knows the change with its earlier step";
}

TEST_F(Steering, AMemberThatHasBegunTheViewKeepsTheChange) {
  run.receive(operator_connection, operator_command("set", {"outer.sync_every=60"}));
  seal(40, 47);
  run.receive(51, operator_command("pause"));
  seal(60, 61);
  ASSERT_THAT(settings().changes, SizeIs(1));
  EXPECT_EQ(settings().changes[0].step, 47U);
  EXPECT_EQ(settings().pause_after, 61U);
}

TEST_F(Steering, WhatTheCoordinatorProposesIsAgreedLikeWhatAnOperatorAsksFor) {
  run.propose({{"outer.sync_every", "60"}});
  EXPECT_THAT(run.said, Contains(HasSubstr("outer.auto requests: a thin line")));
  run.propose({{"outer.sync_every", "70"}});  // one change is under way
  seal(40, 47);
  beat(1);
  ASSERT_THAT(settings().changes, SizeIs(1));
  EXPECT_EQ(settings().changes[0], (Change{47, {{"outer.sync_every", "60"}}}));
  EXPECT_THAT(run.said, Contains(HasSubstr("outer.sync_every=60 takes effect after step 47 (outer.auto)")));
  run.propose({{"model.dim", "64"}});
  EXPECT_THAT(run.said.back(), HasSubstr("but model.dim cannot be set in mid-run"));
  run.propose({{"outer.sync_every", "80"}});
  seal(990, 1003);
  EXPECT_THAT(run.said,
              Contains(HasSubstr("outer.auto changes nothing: the change would take effect after")));
  EXPECT_THAT(settings().changes, SizeIs(1));
}

TEST_F(Steering, PausesAndGoesOn) {
  run.receive(operator_connection, operator_command("pause"));
  seal(40, 47);
  beat(1);
  EXPECT_EQ(settings().pause_after, 47U);
  EXPECT_EQ(run.coordinator.run_phase(), RunPhase::paused);
  run.receive(51, operator_command("pause"));
  EXPECT_THAT(problem(51), HasSubstr("paused already, after step 47"));
  run.receive(52, operator_command("checkpoint"));
  EXPECT_THAT(problem(52), HasSubstr("resume it first"));
  run.receive(53, operator_command("resume"));
  seal(50, 50);
  beat(1);
  EXPECT_THAT(problem(53), IsEmpty());
  EXPECT_EQ(settings().pause_after, Settings::never);
}

TEST_F(Steering, ARateIsEachMembersOwn) {
  auto one = operator_command("set", {"network.rate=40Mbps"});
  one.member = "b";
  run.receive(operator_connection, one);
  EXPECT_THAT(problem(), IsEmpty());
  EXPECT_EQ(run.count<Adjust>(1), 0U);
  EXPECT_EQ(run.last<Adjust>(2)->items, (ConfigItems{{"network.rate", "40Mbps"}}));
  one.member = "c";
  run.receive(51, one);
  EXPECT_THAT(problem(51), HasSubstr("no member or site is called 'c'"));
}

TEST_F(Steering, DrainsWhomTheOthersCanDoWithout) {
  run.receive(operator_connection, operator_command("drain", {"b"}));
  EXPECT_THAT(problem(), IsEmpty());
  EXPECT_EQ(run.count<Drain>(2), 1U);
  EXPECT_EQ(run.count<Drain>(1), 0U);
  run.receive(51, operator_command("drain", {"a", "b"}));
  EXPECT_THAT(problem(51), HasSubstr("0 replicas would be left"));
  run.receive(52, operator_command("drain", {"c"}));
  EXPECT_THAT(problem(52), HasSubstr("no worker or site is called 'c'"));
}

TEST_F(Steering, WhoEntersAViewWithoutTheStateIsToldWhatItsRoundsAreMadeUnder) {
  auto observer = CoordinatorHarness::hello("o");
  observer.member.kind = MemberKind::observer;
  run.receive(9, observer);
  run.receive(operator_connection, operator_command("set", {"outer.optimizer.lr=0.5"}));
  seal(40, 47);
  ASSERT_TRUE(run.last<Steered>(9));
  EXPECT_EQ(run.last<Steered>(9)->settings, settings());
  EXPECT_EQ(run.last<Admitted>(9)->settings, settings());
}

// ---- only operators steer ----

const Settings made_up{.changes = {{20, {{"outer.optimizer.lr", "1e9"}, {"outer.no_such_key", "x"}}}},
                       .pause_after = 0};

TEST_F(Steering, AMemberThatSealsWithSettingsOfItsOwnIsDroppedAlone) {
  run.receive(3, CoordinatorHarness::hello("c"));
  run.receive(3, Ready{});
  auto answer = CoordinatorHarness::sealed();
  answer.view = run.last<Seal>(1)->view;
  answer.activated = 1;
  answer.settings = made_up;
  run.receive(1, answer);
  EXPECT_THAT(run.refusal(1), HasSubstr("settings of view 1 other than the announced ones"));
  run.seal_all({2, 3});
  ASSERT_TRUE(run.last<NewView>(3));
  EXPECT_EQ(run.last<NewView>(3)->settings, Settings());
  EXPECT_FALSE(run.ended);
}

TEST_F(Steering, AMemberThatComesBackWithSettingsOfItsOwnIsRefused) {
  auto back = CoordinatorHarness::hello("a");
  back.activated = back.sealed = 1;
  back.token = digest_of(99);
  back.member.incarnation = 1;
  back.settings = made_up;
  run.receive(4, back);
  EXPECT_THAT(run.refusal(4), HasSubstr("settings of view 1 other than the announced ones"));
  EXPECT_EQ(settings(), Settings());
  EXPECT_FALSE(run.closed.contains(1)) << "it may be another process with the same name";
}

/// A restarted coordinator; a and b were in view 7, which began with `settings`.
class SteeringAgain : public ::testing::Test {
 protected:
  void start(bool knows, const Settings& announced = {}) {
    auto again = steerable_options(2);
    if (knows)
      again.last = LastView{7,
                            {CoordinatorHarness::hello("a").member, CoordinatorHarness::hello("b").member},
                            again.token,
                            announced};
    else
      again.recover = 1000;
    run.emplace(again);
  }
  void come_back(const Settings& of_a, const Settings& of_b) {
    for (const ConnectionId member : {1, 2}) {
      auto hello = CoordinatorHarness::hello(member == 1 ? "a" : "b");
      hello.activated = hello.sealed = 7;
      hello.token = digest_of(99);
      hello.settings = member == 1 ? of_a : of_b;
      run->receive(member, hello);
    }
    if (!run->last<Seal>(1)) {  // a coordinator that does not know its members waits for all that may come
      run->tick(4s);
      for (const ConnectionId member : {1, 2}) run->receive(member, Heartbeat{});
      run->tick(6s);
    }
    for (const ConnectionId member : {1, 2}) {
      if (!run->last<Seal>(member) || run->ended) continue;
      auto answer = CoordinatorHarness::sealed();
      answer.view = run->last<Seal>(member)->view;
      answer.activated = 7;
      answer.settings = member == 1 ? of_a : of_b;
      run->receive(member, answer);
    }
  }
  const Settings changed{.changes = {{47, {{"outer.sync_every", "60"}}}}};
  std::optional<CoordinatorHarness> run;
};

TEST_F(SteeringAgain, TheCoordinatorRemembersWhatWasSet) {
  start(true, changed);
  EXPECT_EQ(run->coordinator.settings(), changed);
  come_back(changed, changed);
  ASSERT_TRUE(run->last<NewView>(1));
  EXPECT_EQ(run->last<NewView>(1)->settings, changed);
  EXPECT_EQ(run->stored->settings, changed);
}

TEST_F(SteeringAgain, WhatAMemberSaysDoesNotReplaceIt) {
  start(true, changed);
  come_back(made_up, changed);
  EXPECT_THAT(run->refusal(1), HasSubstr("settings of view 7 other than the announced ones"));
  EXPECT_EQ(run->coordinator.settings(), changed);
  ASSERT_TRUE(run->last<NewView>(2));
  EXPECT_EQ(run->last<NewView>(2)->settings, changed);
}

TEST_F(SteeringAgain, OneThatRemembersNothingTakesWhatAllReport) {
  start(false);
  come_back(changed, changed);
  ASSERT_TRUE(run->last<NewView>(1));
  EXPECT_EQ(run->last<NewView>(1)->settings, changed);
}

TEST_F(SteeringAgain, MembersOfOneViewWithDifferentSettingsAreADisagreement) {
  start(false);
  come_back(changed, {});
  ASSERT_TRUE(run->ended);
  EXPECT_EQ(run->ended->how, Ended::How::diverged);
  EXPECT_THAT(run->ended->reason, HasSubstr("are not the same at b and a, which are both in view 7"));
}

TEST_F(SteeringAgain, WhatNoOperatorCanHaveSetIsRefused) {
  start(false);
  const Settings forbidden{.changes = {{47, {{"model.dim", "64"}}}}};
  const Settings own{.changes = {{47, {{"network.rate", "40Mbps"}}}}};
  come_back(forbidden, own);
  EXPECT_THAT(run->refusal(1), HasSubstr("model.dim cannot be set in mid-run"));
  EXPECT_THAT(run->refusal(2), HasSubstr("network.rate=40Mbps is set by each member for itself"));
  EXPECT_EQ(run->coordinator.settings(), Settings());
  EXPECT_FALSE(run->ended);
}

TEST(SteeringBefore, CheckpointsMustHoldWhatCanBeSet) {
  CoordinatorHarness run{steerable_options(1)};
  run.receive(1, CoordinatorHarness::hello("a"));
  auto answer = CoordinatorHarness::sealed();
  answer.settings.changes = {{47, {{"model.dim", "64"}}}};
  run.receive(1, answer);
  ASSERT_TRUE(run.ended);
  EXPECT_THAT(run.ended->reason, HasSubstr("model.dim cannot be set in mid-run"));
}

TEST(SteeringBefore, TheFirstViewNothingIsChanged) {
  CoordinatorHarness run{steerable_options(2)};
  run.receive(1, CoordinatorHarness::hello("a"));
  run.receive(operator_connection, operator_command("pause"));
  EXPECT_THAT(run.last<Answer>(operator_connection)->problem, HasSubstr("has not begun"));
}

TEST(SteeringBefore, CheckpointsMustAgreeOnWhatWasSet) {
  CoordinatorHarness run{steerable_options(2)};
  run.receive(1, CoordinatorHarness::hello("a"));
  run.receive(2, CoordinatorHarness::hello("b"));
  auto changed = CoordinatorHarness::sealed();
  changed.settings.changes = {{47, {{"outer.sync_every", "60"}}}};
  run.receive(1, changed);
  run.receive(2, CoordinatorHarness::sealed());
  ASSERT_TRUE(run.ended);
  EXPECT_THAT(run.ended->reason, HasSubstr("settings changed in mid-run"));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
