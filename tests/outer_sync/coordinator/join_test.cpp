// The coordinator until all are here: which processes it admits, which it refuses, and the messages.

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using How = Ended::How;

std::vector<std::string> names_of(const View& view) {
  std::vector<std::string> names;
  for (const auto& member : view.members) names.push_back(member.name);
  return names;
}

TEST(Joining, TheOrderOfArrivalDoesNotMatter) {
  std::vector<std::string> names{"asia-1", "eu-1", "us-1"};
  std::optional<Bytes> first;
  do {
    CoordinatorHarness harness(3);
    harness.run_all(names);
    const auto view = harness.last<NewView>(2)->view;
    EXPECT_EQ(view.number, 1U);
    EXPECT_THAT(names_of(view), ElementsAre("asia-1", "eu-1", "us-1")) << "members are sorted by name";
    if (!first) first = to_bytes(view);
    EXPECT_EQ(to_bytes(view), *first) << "the view must not depend on the order of joining";
    EXPECT_EQ(harness.last<NewView>(1)->token, digest_of(99));
  } while (std::ranges::next_permutation(names).found);
}

TEST(Joining, NothingIsSealedBeforeAllAreHere) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  EXPECT_FALSE(harness.last<Seal>(1));
  harness.receive(1, CoordinatorHarness::sealed());
  EXPECT_FALSE(harness.last<NewView>(1)) << "a member that seals without being asked must not start the run";
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 0U);
  EXPECT_EQ(harness.last<Seal>(2)->view, 1U);
  harness.receive(1, CoordinatorHarness::sealed());
  EXPECT_FALSE(harness.last<NewView>(1)) << "eu-1 has not sealed";
}

TEST(Joining, OneTooManyWaitsUntilTheRunHasBegun) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  harness.receive(3, CoordinatorHarness::hello("ap-1"));
  EXPECT_TRUE(harness.closed.contains(3)) << "it must ask again";
  EXPECT_TRUE(harness.refusal(3).empty()) << "a refused member would not ask again";
  harness.receive(1, CoordinatorHarness::sealed());
  harness.receive(2, CoordinatorHarness::sealed());
  EXPECT_THAT(names_of(harness.last<NewView>(1)->view), ElementsAre("eu-1", "us-1"));
  harness.receive(4, CoordinatorHarness::hello("ap-1"));
  EXPECT_TRUE(harness.last<Admitted>(4)) << "it must be admitted like any newcomer";
}

/// Lets us-1 join, then eu-1 with a changed Hello; returns the reason why eu-1 is refused, or "".
template <class Change>
std::string refusal_of(Change change) {
  CoordinatorHarness harness(3);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  auto hello = CoordinatorHarness::hello("eu-1");
  change(hello);
  harness.receive(2, hello);
  EXPECT_EQ(harness.coordinator.members().contains("eu-1"), harness.refusal(2).empty())
      << "a refused worker must not become a member";
  EXPECT_FALSE(harness.ended) << "a refused worker must not end the run";
  EXPECT_FALSE(harness.closed.contains(1));
  return harness.refusal(2);
}

TEST(Joining, RefusalsNameWhatDiffers) {
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.config[0].second = "60"; }),
              HasSubstr("outer.sync_every is 30 at the coordinator and 60 at eu-1"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.config.erase(hello.config.begin()); }),
              HasSubstr("outer.sync_every is 30 at the coordinator and unknown at eu-1"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.config.emplace_back("outer.new_key", "1"); }),
              HasSubstr("outer.new_key is unknown at the coordinator and 1 at eu-1"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.protocol = hello.oldest = 77; }),
              AllOf(HasSubstr("77"), HasSubstr("eu-1"), HasSubstr("same build")));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.numerics = 78; }), HasSubstr("78"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.run = "run-2"; }),
              AllOf(HasSubstr("run-1"), HasSubstr("run-2")));
  EXPECT_THAT(refusal_of([](Hello& hello) {
                hello.member.name = "us-1";
                hello.member.incarnation = 0;
              }),
              AllOf(HasSubstr("'us-1' is already here"), HasSubstr("--name")));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.member.name = ""; }), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.member.name = std::string(65, 'x'); }),
              HasSubstr("1 to 64"));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.model = digest_of(9); }),
              AllOf(HasSubstr("the model of eu-1"), HasSubstr("us-1")));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.tokenizer = digest_of(9); }),
              AllOf(HasSubstr("the tokenizer of eu-1"), HasSubstr("us-1")));
  EXPECT_THAT(refusal_of([](Hello& hello) { hello.resume = true; }),
              AllOf(HasSubstr("eu-1 wants to resume"), HasSubstr("all or none must")));
  EXPECT_EQ(refusal_of([](Hello&) {}), "") << "an equal worker must be admitted";
}

TEST(Joining, OneThatIsStartedAgainBeforeItsOldConnectionWasSeenToEndTakesItsPlace) {
  CoordinatorHarness harness(2);
  auto hello = CoordinatorHarness::hello("us-1");
  harness.receive(1, hello);
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  const auto asked = harness.last<Seal>(2)->view;
  ++hello.member.incarnation;
  harness.receive(3, hello);
  EXPECT_EQ(harness.refusal(3), "");
  EXPECT_TRUE(harness.closed.contains(1));
  EXPECT_GT(harness.last<Seal>(2)->view, asked) << "the others must be asked to seal again";
  harness.close(1);
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = harness.last<Seal>(3)->view;
  harness.receive(2, sealed);
  harness.receive(3, sealed);
  ASSERT_TRUE(harness.last<NewView>(3));
  EXPECT_THAT(names_of(harness.last<NewView>(3)->view), ElementsAre("eu-1", "us-1"));
}

TEST(Joining, OneThatIsStartedAgainToResumeIsNotHeldAgainstItself) {
  CoordinatorHarness harness(2);
  auto hello = CoordinatorHarness::hello("us-1");
  harness.receive(1, hello);
  ++hello.member.incarnation;
  hello.resume = true;
  harness.receive(2, hello);
  EXPECT_EQ(harness.refusal(2), "") << "no other member is here";
}

TEST(Joining, OneThatDoesNotResumeAmongThoseThatDoIsRefused) {
  CoordinatorHarness harness(2);
  auto resuming = CoordinatorHarness::hello("us-1");
  resuming.resume = true;
  harness.receive(1, resuming);
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  EXPECT_THAT(harness.refusal(2),
              AllOf(HasSubstr("eu-1"), HasSubstr("resume"), HasSubstr("all or none must")));
}

TEST(Joining, LateComersAreRefusedWhereNobodyCanJoinInMidRun) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(1));
  harness.run_all({"us-1"});
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  EXPECT_THAT(harness.refusal(2), HasSubstr("does not accept late joiners"));
  EXPECT_FALSE(harness.ended);
}

TEST(Joining, StrangersAreDroppedAndChangeNothing) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.receive(7, Heartbeat{});
  harness.receive(8, Leave{"ha"});
  harness.receive(9, StopRequest{"ha"});
  for (const ConnectionId stranger : {7, 8, 9}) EXPECT_TRUE(harness.closed.contains(stranger));
  harness.close(7);
  EXPECT_FALSE(harness.ended);
  EXPECT_FALSE(harness.coordinator.stopping()) << "a stranger must not stop the run";
  harness.receive(2, CoordinatorHarness::hello("eu-1"));
  EXPECT_TRUE(harness.last<Seal>(1));
}

TEST(Joining, OneThatLeavesMakesRoomForAnother) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.close(1);
  harness.receive(2, CoordinatorHarness::hello("us-2"));
  harness.receive(2, Leave{"no corpus here"});
  EXPECT_FALSE(harness.ended) << "the others are still waiting for a second replica";
  EXPECT_THAT(harness.said.back(), AllOf(HasSubstr("us-2"), HasSubstr("no corpus here")));
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  harness.receive(4, CoordinatorHarness::hello("us-2"));
  EXPECT_TRUE(harness.last<Seal>(3) && harness.last<Seal>(4));
}

TEST(Joining, OneThatFallsSilentMakesRoomForItself) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.tick(6s);
  EXPECT_TRUE(harness.closed.contains(1));
  EXPECT_FALSE(harness.ended);
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  EXPECT_EQ(harness.refusal(2), "") << "the dead connection's name must be free again";
}

TEST(Joining, HeartbeatsKeepAPlaceWhileOthersAreMissing) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  for (Time t = 4s; t <= 56s; t += 4s) {
    harness.now = t;
    harness.receive(1, Heartbeat{});
    harness.tick(t);
  }
  EXPECT_TRUE(harness.last<HeartbeatReply>(1))
      << "members notice a silent coordinator by the missing replies";
  EXPECT_EQ(harness.coordinator.members().size(), 1U);
  EXPECT_EQ(harness.members_changed, 0U) << "no member trains yet, so there is nothing to show";
}

TEST(Joining, NobodyWaitsLongerThanTheJoinTimeout) {
  CoordinatorHarness harness(3);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  harness.now = 59s;
  harness.receive(1, Heartbeat{});
  harness.tick(60s);
  EXPECT_FALSE(harness.ended);
  harness.tick(60s + 1us);
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, How::failed);
  EXPECT_THAT(harness.ended->reason, AllOf(HasSubstr("only 1 of 3"), HasSubstr("network.join_timeout")));
  EXPECT_TRUE(harness.last<Abort>(1));
}

// ---- versions and names ----

TEST(Versions, OneThatSpeaksNoCommonProtocolIsRefusedByName) {
  CoordinatorHarness run{2};
  auto newer = CoordinatorHarness::hello("a");
  newer.protocol = newer.oldest = protocol_version + 1;
  run.receive(1, newer);
  EXPECT_THAT(run.refusal(1), HasSubstr("at a (build test)"));
  auto older = CoordinatorHarness::hello("a");
  older.protocol = older.oldest = oldest_protocol - 1;
  run.receive(2, older);
  EXPECT_THAT(run.refusal(2), HasSubstr("expected protocol " + std::to_string(oldest_protocol)));
  auto compatible = CoordinatorHarness::hello("a");
  compatible.protocol = protocol_version + 1;
  compatible.oldest = protocol_version;
  run.receive(3, compatible);
  EXPECT_THAT(run.refusal(3), testing::IsEmpty());
}

TEST(Versions, AnotherBuildIsNoted) {
  auto with_build = CoordinatorHarness::default_options(2);
  with_build.build = "1.0-abc";
  CoordinatorHarness run{with_build};
  run.receive(1, CoordinatorHarness::hello("a"));
  EXPECT_THAT(run.refusal(1), testing::IsEmpty());
  EXPECT_THAT(run.said, testing::Contains(HasSubstr("a is of build test, and the coordinator of 1.0-abc")));
}

TEST(Versions, NoMemberIsCalledLikeAnOperator) {
  CoordinatorHarness run{2};
  run.receive(1, CoordinatorHarness::hello("operator-anna"));
  EXPECT_THAT(run.refusal(1), HasSubstr("reserved for operators"));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
