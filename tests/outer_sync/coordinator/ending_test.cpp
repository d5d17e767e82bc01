// The end of a run at the coordinator: the agreed stop, the final hashes, members lost at the end.

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using How = Ended::How;

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
  harness.receive(1, Heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {{3, 1}, {2, 1}}});
  harness.receive(2, Heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {{2, 1}, {2, 1}}});
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
    harness.receive(1, Heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {{3, 1}, {2, 1}}});
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

// ---- the end ----

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

TEST(Ending, AReducerStillJoinsBecauseMembersMayNeedItAsARelay) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.stop("enough");
  auto reducer = CoordinatorHarness::hello("hub");
  reducer.member.kind = MemberKind::reducer;
  harness.receive(3, reducer);
  EXPECT_EQ(harness.refusal(3), "");
  harness.seal_all({1, 2, 3});
  ASSERT_TRUE(harness.last<NewView>(3));
  EXPECT_EQ(harness.last<NewView>(3)->view.members.size(), 3U);
  EXPECT_TRUE(harness.last<Hold>(1)) << "the stop continues in the new view";
  for (const ConnectionId trainer : {1, 2}) harness.receive(trainer, Done{"{}", digest_of(1)});
  ASSERT_TRUE(harness.last<StopAt>(3));
  harness.receive(3, Done{"{}", {}});
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::finished) << harness.ended->reason;
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
