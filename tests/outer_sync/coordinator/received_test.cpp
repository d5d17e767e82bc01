// Members and a coordinator that send impossible values. The sender is dropped with a reason, and the others
// are not affected.

#include "isthmus/outer_sync/protocol/received.h"

#include <cmath>
#include <tuple>

#include "cluster.h"
#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t huge = ~std::uint64_t{0};
constexpr std::uint64_t steps = 1000;

CoordinatorOptions options_for(std::size_t replicas) {
  auto options = CoordinatorHarness::default_options(replicas);
  options.steps = steps;
  return options;
}

/// Two trainers are in the run; connection 1 then sends something wrong.
class Received : public testing::Test {
 protected:
  void SetUp() override { run.run_all({"a", "b"}); }
  /// Fails the test unless only a is dropped, while b is asked to seal and continues.
  void expect_dropped(const std::string& why) {
    EXPECT_THAT(run.refusal(1), HasSubstr(why));
    EXPECT_THAT(run.said, Contains(testing::AllOf(HasSubstr("a broke the protocol"), HasSubstr(why))));
    EXPECT_FALSE(run.ended);
    EXPECT_FALSE(run.closed.contains(2));
    run.seal_all({2});
    ASSERT_TRUE(run.last<NewView>(2));
    EXPECT_EQ(run.last<NewView>(2)->view.members.size(), 1U);
  }
  static Heartbeat beat() {
    Heartbeat beat;
    beat.view = 1;
    beat.step = 10;
    beat.fragments = {{3, 7}, {2, 7}};
    return beat;
  }

  CoordinatorHarness run{options_for(2)};
};

TEST_F(Received, StepsThatTheRunHasAreTaken) {
  auto last = beat();
  last.step = steps;
  last.fragments = {{steps + 1, 7}, {steps, 7}};
  run.receive(1, last);
  EXPECT_EQ(run.refusal(1), "");
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

TEST_F(Received, AHeartbeatOfAStepThatTheRunHasNot) {
  auto late = beat();
  late.step = huge;
  run.receive(1, late);
  expect_dropped("the agreed step is 18446744073709551615; expected at most 1000");
}

TEST_F(Received, AHeartbeatOfARoundThatTheRunHasNot) {
  auto late = beat();
  late.fragments[1].first = steps + 2;
  run.receive(1, late);
  expect_dropped("a round is 1002; expected at most 1001");
}

TEST_F(Received, AHeartbeatOfMoreFragmentsThanThereAre) {
  auto odd = beat();
  odd.fragments.resize(3);
  run.receive(1, odd);
  expect_dropped("3 fragments; expected at most 2");
}

TEST_F(Received, AHeartbeatWithAHugeRoundThatWasMeasured) {
  auto odd = beat();
  odd.health = {{0, huge, 1, 0.5, {}}};
  run.receive(1, odd);
  expect_dropped("a round is 18446744073709551615");
}

TEST_F(Received, FiguresThatOuterStepsHaveAreTaken) {
  auto known = beat();
  known.outer_gain = -max_abs_gain;
  known.outer_correlation = 1;
  run.receive(1, known);
  EXPECT_EQ(run.refusal(1), "");
  EXPECT_EQ(run.coordinator.members().at("a").heartbeat.outer_gain, -max_abs_gain);
}

class ReceivedFigures : public Received, public testing::WithParamInterface<std::pair<double, double>> {};

TEST_P(ReceivedFigures, ThatNoOuterStepHas) {
  auto odd = beat();
  std::tie(odd.outer_gain, odd.outer_correlation) = GetParam();
  run.receive(1, odd);
  expect_dropped(std::abs(odd.outer_correlation) <= 1 ? "an outer gain that is not in -1e6 to 1e6"
                                                      : "a correlation that is not in -1 to 1");
}

INSTANTIATE_TEST_SUITE_P(Figures, ReceivedFigures,
                         testing::Values(std::pair(NAN, 0.5), std::pair(INFINITY, 0.5),
                                         std::pair(-2 * max_abs_gain, 0.5), std::pair(2.0, NAN),
                                         std::pair(2.0, -INFINITY), std::pair(2.0, 1.5)));

TEST_F(Received, AViewThatHasNotBegun) {
  auto odd = beat();
  odd.view = 900;  // all would copy the state from the member in the highest view
  run.receive(1, odd);
  expect_dropped("view 900, which has not begun for it");
}

TEST_F(Received, AStepToStopAfterThatTheRunHasNot) {
  run.stop("enough");
  run.receive(1, Held{steps + 1});
  EXPECT_THAT(run.refusal(1), HasSubstr("the step to hold after is 1001"));
  run.receive(2, Held{7});
  ASSERT_TRUE(run.last<StopAt>(2));
  EXPECT_EQ(run.last<StopAt>(2)->step, 7U);
}

TEST_F(Received, AnAgreedStepThatTheRunHasNotIsInNoView) {
  run.receive(3, CoordinatorHarness::hello("c"));
  run.receive(3, Ready{});
  auto answer = CoordinatorHarness::sealed();
  answer.view = run.last<Seal>(1)->view;
  answer.activated = 1;
  answer.step = huge;
  run.receive(1, answer);
  EXPECT_THAT(run.refusal(1), HasSubstr("the agreed step is"));
  run.seal_all({2, 3});
  ASSERT_TRUE(run.last<NewView>(3));
  EXPECT_EQ(run.last<NewView>(3)->step, 0U);
}

/// A view with these samples would leave the others nothing to train on.
TEST_F(Received, SamplesThatNoTrackHasAreInNoView) {
  constexpr auto end = SampleRange::max_sequences;
  using Change = std::function<void(Sealed&)>;
  const std::vector<Change> changes{
      [](Sealed& sealed) {
        sealed.taken = SampleSet({{0, 0, end + 1}});
      },
      [](Sealed& sealed) {
        sealed.reserved = SampleSet({{1, end, end + 1}});
      },
      [](Sealed& sealed) {
        sealed.taken = SampleSet({{SampleRange::max_tracks, 0, 1}});
      },
  };
  ConnectionId number = 3;
  for (const auto& change : changes) {
    CoordinatorHarness fresh(options_for(1));
    fresh.receive(1, CoordinatorHarness::hello("a"));
    fresh.receive(1, CoordinatorHarness::sealed());
    fresh.receive(number, CoordinatorHarness::hello("c"));
    fresh.receive(number, Ready{});
    auto answer = CoordinatorHarness::sealed();
    answer.view = fresh.last<Seal>(number)->view;
    change(answer);
    fresh.receive(number, answer);
    EXPECT_THAT(fresh.refusal(number), HasSubstr("invalid samples"));
    ++number;
  }
}

TEST_F(Received, AnEvaluationOfAStepThatTheRunHasNot) {
  run.receive(1, EvalReport{huge, 1, 1});
  expect_dropped("the step of an evaluation is");
}

TEST_F(Received, WhoIsDroppedIsLeftOutForAWhile) {
  auto late = beat();
  late.step = huge;
  run.receive(1, late);
  run.seal_all({2});
  auto back = CoordinatorHarness::hello("a");
  back.activated = back.sealed = 1;
  back.token = digest_of(99);
  run.receive(4, back);
  EXPECT_EQ(run.count<Seal>(4), 0U);
  for (int i = 1; i <= 31; ++i) {
    for (const ConnectionId member : {2, 4}) run.receive(member, Heartbeat{});
    run.tick(i * 1s);
  }
  EXPECT_EQ(run.count<Seal>(4), 1U) << "6 times network.detect_timeout";
}

TEST_F(Received, AnObserverIsHeldToTheSame) {
  auto hello = CoordinatorHarness::hello("watch");
  hello.member.kind = MemberKind::observer;
  run.receive(9, hello);
  auto odd = beat();
  odd.fragments[0].first = huge;
  run.receive(9, odd);
  EXPECT_TRUE(run.closed.contains(9));
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

// ---- hellos ----

TEST_F(Received, AHelloFromAViewThatWasNeverAnnounced) {
  for (const ViewNumber view : {ViewNumber{2}, ViewNumber{900}, highest_view}) {
    auto hello = CoordinatorHarness::hello("c");
    hello.activated = hello.sealed = view;
    hello.token = digest_of(99);
    run.receive(5, hello);
    EXPECT_TRUE(run.closed.contains(5)) << "otherwise it would be the reference, and the others evicted";
    EXPECT_EQ(run.coordinator.view(), 1U);
    EXPECT_EQ(run.coordinator.participating(), 2U);
    run.closed.erase(5);
    run.close(5);
  }
}

TEST_F(Received, AHelloFromAViewOfOthers) {
  auto hello = CoordinatorHarness::hello("c");
  hello.activated = hello.sealed = 1;
  hello.token = digest_of(99);
  run.receive(5, hello);
  EXPECT_TRUE(run.closed.contains(5));
  EXPECT_THAT(run.said, Contains(HasSubstr("has not announced to it (its newest is 1)")));
}

/// Its peers would get the address with the view and dial it.
TEST_F(Received, AnAddressThatNobodyCanDial) {
  for (const auto& address :
       std::vector<std::string>{"x", "host:70000", "host:", std::string(600, 'a') + ":1"}) {
    auto hello = CoordinatorHarness::hello("c");
    hello.member.address = address;
    run.receive(5, hello);
    EXPECT_THAT(run.refusal(5), HasSubstr("address")) << address;
    run.close(5);
  }
}

TEST(ReceivedHellos, NoClaimLeavesTooFewNumbersForTheViewsToCome) {
  auto options = options_for(2);
  options.recover = 1000;
  CoordinatorHarness run(options);
  auto hello = CoordinatorHarness::hello("a");
  hello.activated = 5;
  hello.sealed = highest_view - 1;
  run.receive(1, hello);
  EXPECT_TRUE(run.closed.contains(1));
  EXPECT_EQ(run.coordinator.view(), 1000U);
}

// ---- answers to a seal ----

Hello reducer_with_a_model() {
  auto hello = CoordinatorHarness::hello("r");
  hello.member.kind = MemberKind::reducer;
  return hello;
}

TEST(ReceivedAnswers, OfAReducerThatHasBeenInNoView) {
  const auto with = [](auto change) {
    auto answer = CoordinatorHarness::sealed();
    change(answer);
    return answer;
  };
  const std::vector<Sealed> answers{
      with([](Sealed& sealed) { sealed.activated = 1; }),
      with([](Sealed& sealed) { sealed.history.clear(); }),
      with([](Sealed& sealed) { sealed.history.pop_back(); }),
      with([](Sealed& sealed) { sealed.fragments.resize(3); }),
      with([](Sealed& sealed) { sealed.layout.clear(); }),
      with([](Sealed& sealed) {
        sealed.history[0] = {{huge, {}}};
      }),  // the next round would be 0
  };
  for (std::size_t i = 0; i < answers.size(); ++i) {
    CoordinatorHarness run(options_for(1));
    run.receive(1, reducer_with_a_model());
    run.receive(2, CoordinatorHarness::hello("a"));
    run.receive(1, answers[i]);
    EXPECT_THAT(run.refusal(1), HasSubstr("broke the protocol")) << "answer " << i;
    run.receive(2, CoordinatorHarness::sealed());
    ASSERT_TRUE(run.last<NewView>(2)) << "answer " << i;
    EXPECT_EQ(run.last<NewView>(2)->view.members.size(), 1U);
    EXPECT_FALSE(run.ended);
  }
}

TEST(ReceivedAnswers, OfATrainerThatSaysNothing) {
  CoordinatorHarness run(options_for(2));
  for (const ConnectionId member : {1, 2})
    run.receive(member, CoordinatorHarness::hello(member == 1 ? "a" : "b"));
  Sealed blank;
  blank.view = 1;
  run.receive(1, blank);
  EXPECT_THAT(run.refusal(1), HasSubstr("a trainer without a layout"));
}

/// A restarted coordinator. c, which was not in the last view, answers first.
TEST(ReceivedAnswers, TheFirstToSpeakDoesNotSayWhatTheLayoutIs) {
  auto options = options_for(3);
  options.last = LastView{
      7, {CoordinatorHarness::hello("a").member, CoordinatorHarness::hello("b").member}, options.token};
  CoordinatorHarness run(options);
  const std::vector<std::pair<std::string, ViewNumber>> members{{"a", 7}, {"b", 7}, {"c", 6}};
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto hello = CoordinatorHarness::hello(members[i].first);
    hello.activated = hello.sealed = members[i].second;
    hello.token = options.token;
    run.receive(i + 1, hello);
  }
  auto odd = CoordinatorHarness::sealed();
  odd.view = run.last<Seal>(3)->view;
  odd.activated = 6;
  odd.chunk_elements = 16;
  run.receive(3, odd);
  const auto answer = [&](ConnectionId member) {
    auto sealed = CoordinatorHarness::sealed();
    sealed.view = run.last<Seal>(member)->view;
    sealed.activated = 7;
    run.receive(member, sealed);
  };
  answer(1);
  answer(2);
  EXPECT_TRUE(run.closed.contains(3));
  EXPECT_FALSE(run.closed.contains(1) || run.closed.contains(2));
  answer(1);
  answer(2);
  ASSERT_TRUE(run.last<NewView>(1));
  EXPECT_EQ(run.last<NewView>(1)->view.members.size(), 2U);
}

TEST(ReceivedCheckpoints, BeyondTheEndOfTheRunAreNoneToResumeFrom) {
  CoordinatorHarness run(options_for(1));
  auto hello = CoordinatorHarness::hello("a");
  hello.resume = true;
  hello.checkpoints = {{steps + 1, 1}};
  run.receive(1, hello);
  ASSERT_TRUE(run.ended);
  EXPECT_THAT(run.ended->reason, HasSubstr("is of step 1001, and run.steps is 1000"));
}

TEST(ReceivedCheckpoints, AreNotMoreThanAMemberMayList) {
  CoordinatorHarness run(options_for(2));
  auto hello = CoordinatorHarness::hello("a");
  hello.resume = true;
  for (std::uint64_t step = 1; step <= max_checkpoints; ++step) hello.checkpoints.push_back({step, 1});
  run.receive(1, hello);
  EXPECT_EQ(run.refusal(1), "");
  hello.member.name = "b";
  hello.checkpoints.push_back({max_checkpoints + 1, 1});
  run.receive(2, hello);
  EXPECT_THAT(run.refusal(2), HasSubstr("1025 checkpoints; expected at most 1024"));
}

// ---- messages of a coordinator ----

TEST(ReceivedViews, AreJudgedByTheMemberToo) {
  Cluster cluster({"a", "b"});
  cluster.train(2);
  NewView good;
  cluster.lost = [&](const std::string& to, const ControlMessage& message) {
    if (const auto* view = std::get_if<NewView>(&message); view != nullptr && to == "a") good = *view;
    return false;
  };
  cluster.kill("b");
  ASSERT_EQ(good.view.members.size(), 1U);
  const auto& member = *cluster.at("a").member;
  EXPECT_TRUE(member.fits(good, 0));
  EXPECT_FALSE(member.fits(good, 1));
  const auto fits_with = [&](auto change) {
    auto view = good;
    change(view);
    return member.fits(view, 0);
  };
  EXPECT_FALSE(fits_with([](NewView& view) { view.step = huge; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.view.number = huge; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.reference = view.view.number; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.chains[0].back().round = huge; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.chains[0].front().round += 5; })) << "rounds out of order";
  EXPECT_FALSE(fits_with([](NewView& view) { view.applied[0][0] = huge; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.view.owners[0] = 1; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.settings.changes = {{1, {}}}; }));
  EXPECT_FALSE(fits_with([](NewView& view) { view.view.members[0].address = "x"; }));
  EXPECT_FALSE(fits_with([](NewView& view) {
    view.taken = SampleSet({{0, 0, SampleRange::max_sequences + 1}});
  })) << "nothing would be left to train on";
}

TEST(ReceivedReplies, OfTheCoordinatorAreJudged) {
  const FragmentLayout layout({{0, 32}}, 16);
  const Bounds bounds{.steps = 0, .layout = &layout};
  HeartbeatReply reply{1, 1, {3}, {4}, 5'000'000, 1.5, 100};
  EXPECT_THAT(problem_of_message(reply, bounds), IsEmpty());
  reply.newest = {3, 4};
  EXPECT_THAT(problem_of_message(reply, bounds), HasSubstr("2 fragments; expected at most 1"));
  reply.newest = {huge};
  EXPECT_THAT(problem_of_message(reply, bounds), HasSubstr("a round is"));
  EXPECT_THAT(problem_of_message(StopAt{huge}, bounds), HasSubstr("the step to stop after is"));
  EXPECT_THAT(problem_of_message(Seal{1, huge}, bounds), HasSubstr("the step to resume from is"));
  EXPECT_THAT(problem_of_message(Steered{{.changes = {{1, {}}}}}, bounds), HasSubstr("settings"));
  EXPECT_THAT(problem_of_message(Hold{}, bounds), IsEmpty());
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
