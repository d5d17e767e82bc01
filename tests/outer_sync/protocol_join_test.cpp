// The coordinator until the first view begins: which processes it admits, which it refuses, and the messages.

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

// ---- where to start from ----

/// Checkpoints of these steps, all of one history.
std::vector<CheckpointId> of_steps(const std::vector<std::uint64_t>& steps) {
  std::vector<CheckpointId> checkpoints;
  for (const auto step : steps) checkpoints.push_back({step, 7 * step});
  return checkpoints;
}

TEST(Resuming, TheNewestCheckpointThatAllHaveIsTaken) {
  CoordinatorHarness harness(3);
  const std::vector<std::vector<std::uint64_t>> checkpoints{
      {100, 200, 300}, {300, 200, 100, 50}, {400, 200, 100}};
  for (std::size_t i = 0; i < 3; ++i) {
    auto hello = CoordinatorHarness::hello("r" + std::to_string(i));
    hello.resume = true;
    hello.checkpoints = of_steps(checkpoints[i]);
    harness.receive(i + 1, hello);
  }
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 200U);
}

TEST(Resuming, WithoutACommonCheckpointTheRunFailsAndSaysWhatToDo) {
  CoordinatorHarness harness(2);
  for (std::size_t i = 0; i < 2; ++i) {
    auto hello = CoordinatorHarness::hello("r" + std::to_string(i));
    hello.resume = true;
    hello.checkpoints = of_steps({100 + i});
    harness.receive(i + 1, hello);
  }
  ASSERT_TRUE(harness.ended);
  EXPECT_THAT(harness.ended->reason, HasSubstr("no checkpoint is complete and the same on all replicas"));
}

Hello resuming(const std::string& name, const std::vector<std::uint64_t>& steps) {
  auto hello = CoordinatorHarness::hello(name);
  hello.resume = true;
  hello.checkpoints = of_steps(steps);
  return hello;
}

TEST(Resuming, OfOneStepAndAnotherHistoryIsNotCommon) {
  CoordinatorHarness harness(2);
  auto strayed = resuming("r0", {100, 200});
  strayed.checkpoints.back().content += 1;
  harness.receive(1, strayed);
  harness.receive(2, resuming("r1", {100, 200}));
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 100U) << "the checkpoints of step 100 are equal";
}

TEST(Resuming, WhoHasNothingTakesTheStateFromTheOthers) {
  CoordinatorHarness harness(3);
  harness.receive(1, resuming("r0", {100, 200}));
  harness.receive(2, resuming("r1", {}));
  harness.receive(3, resuming("r2", {200}));
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 200U);
  EXPECT_EQ(harness.last<Seal>(3)->resume_step, 200U);
  EXPECT_FALSE(harness.last<Seal>(2)) << "it has no rounds to start with";
  EXPECT_THAT(harness.said, testing::Contains(HasSubstr("r1 has no checkpoint: it copies the state")));
  for (const ConnectionId member : {1, 3}) harness.receive(member, CoordinatorHarness::sealed());
  ASSERT_TRUE(harness.last<NewView>(1));
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
  EXPECT_EQ(harness.last<NewView>(1)->tracks, 3U);
  EXPECT_FALSE(harness.last<NewView>(2));
  ASSERT_TRUE(harness.last<Admitted>(2));
  EXPECT_EQ(harness.last<Admitted>(2)->donors.size(), 2U);
  harness.receive(2, Ready{});
  harness.seal_all({1, 2, 3});
  EXPECT_EQ(harness.last<NewView>(2)->view.members.size(), 3U);
}

TEST(Resuming, WhoHasNothingMayComeBackWithSomething) {
  CoordinatorHarness harness(2);
  harness.receive(1, resuming("r0", {100, 200}));
  harness.receive(2, resuming("r1", {}));
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 200U);
  harness.close(2);
  harness.receive(3, resuming("r1", {100}));
  EXPECT_TRUE(harness.last<Abort>(1)) << "it has restored the checkpoint of step 200";
  auto again = resuming("r0", {100, 200});
  again.member.incarnation = 2;
  harness.receive(4, again);
  for (const ConnectionId member : {3, 4}) {
    ASSERT_TRUE(harness.last<Seal>(member));
    EXPECT_EQ(harness.last<Seal>(member)->resume_step, 100U);
  }
}

TEST(Resuming, ThereMustBeEnoughWhoHaveTheState) {
  auto options = CoordinatorHarness::default_options(3);
  options.least = 2;
  CoordinatorHarness harness(options);
  for (const ConnectionId i : {1, 2, 3}) {
    harness.receive(i, resuming("r" + std::to_string(i),
                                i == 1 ? std::vector<std::uint64_t>{100} : std::vector<std::uint64_t>{}));
  }
  ASSERT_TRUE(harness.ended);
  EXPECT_THAT(harness.ended->reason,
              AllOf(HasSubstr("r1 has checkpoints up to step 100, r2 has none"), HasSubstr("must be 2")));
}

TEST(Resuming, ADataParallelRunNeedsTheStateOfAll) {
  CoordinatorHarness harness(CoordinatorHarness::rigid(2));
  harness.receive(1, resuming("r0", {100}));
  harness.receive(2, resuming("r1", {}));
  ASSERT_TRUE(harness.ended);
  EXPECT_THAT(harness.ended->reason, HasSubstr("r1 has none"));
}

TEST(Checkpoints, TheNewestThatAllTrainersOfTheViewHaveIsSaid) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  const auto beat = [&](ConnectionId from, const std::vector<std::uint64_t>& steps) {
    Heartbeat heartbeat{.number = 1, .view = 1, .lost = {}, .fragments = {}, .health = {}};
    heartbeat.checkpoints = of_steps(steps);
    harness.receive(from, heartbeat);
    return harness.last<HeartbeatReply>(from)->checkpoint;
  };
  EXPECT_EQ(beat(1, {100, 200}), 0U) << "the other member has reported nothing yet";
  EXPECT_EQ(beat(2, {100}), 100U);
  EXPECT_EQ(beat(1, {100, 200, 300}), 100U);
  EXPECT_EQ(beat(2, {100, 300}), 300U) << "us-1 could not write 200";
  harness.receive(3, CoordinatorHarness::hello("asia-1"));
  EXPECT_EQ(beat(1, {100, 300}), 300U) << "a newcomer must not count before it is in a view";
  harness.close(3);
  harness.close(2);
  harness.seal_all({1});
  EXPECT_EQ(beat(1, {300, 400}), 400U) << "the view has only one member now";
}

TEST(Resuming, CheckpointsAreIgnoredByThoseThatStartAfresh) {
  CoordinatorHarness harness(1);
  auto hello = CoordinatorHarness::hello("us-1");
  hello.checkpoints = of_steps({100});
  harness.receive(1, hello);
  EXPECT_EQ(harness.last<Seal>(1)->resume_step, 0U);
}

// ---- sealing ----

/// Three members seal, eu-1 with a changed answer; returns the reason why the run ends, or "began".
template <class Change>
std::string disagreement_of(Change change) {
  CoordinatorHarness harness(3);
  const char* names[] = {"asia-1", "eu-1", "us-1"};
  for (ConnectionId i = 0; i < 3; ++i) harness.receive(i + 1, CoordinatorHarness::hello(names[i]));
  auto other = CoordinatorHarness::sealed();
  change(other);
  harness.receive(1, CoordinatorHarness::sealed());
  harness.receive(2, other);
  harness.receive(3, CoordinatorHarness::sealed());
  if (!harness.ended) return "began";
  EXPECT_EQ(harness.ended->how, How::diverged);
  EXPECT_TRUE(harness.last<Abort>(1) && harness.last<Abort>(2) && harness.last<Abort>(3));
  EXPECT_FALSE(harness.last<NewView>(1));
  return harness.ended->reason;
}

TEST(Sealing, WhoDisagreesIsNamed) {
  EXPECT_EQ(disagreement_of([](Sealed&) {}), "began");
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.parameters = digest_of(8); }),
              AllOf(HasSubstr("global parameters of eu-1 and asia-1 differ"), HasSubstr("seed")));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) {
                sealed.fragments[1].round = 1;
                sealed.ledger[1] = FragmentLedger(1);
              }),
              HasSubstr("eu-1 and asia-1"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.fragments[1].chain = digest_of(8); }),
              HasSubstr("eu-1 and asia-1"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.layout[1].size = 49; }),
              HasSubstr("the fragments of eu-1 and asia-1 differ"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.chunk_elements = 64; }),
              HasSubstr("the fragments of eu-1 and asia-1 differ"));
}

/// Lets the only trainer of a run report this layout; returns why the run ends, or "began".
std::string layout_judged(std::vector<Range> layout, std::uint64_t chunk_elements) {
  CoordinatorHarness harness(1);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  auto sealed = CoordinatorHarness::sealed();
  sealed.fragments.resize(layout.size());
  sealed.history.resize(layout.size());
  sealed.ledger.resize(layout.size());
  sealed.layout = std::move(layout);
  sealed.chunk_elements = chunk_elements;
  harness.receive(1, sealed);
  return harness.last<NewView>(1) ? "began" : harness.refusal(1);
}

TEST(Sealing, HostileLayoutsAreRefusedBeforeAnythingIsSetAside) {
  constexpr std::uint64_t huge = UINT64_MAX;
  const auto refused = HasSubstr("us-1 broke the protocol: an invalid fragment layout");
  EXPECT_THAT(layout_judged({}, 32), HasSubstr("a trainer without a layout"));
  EXPECT_THAT(layout_judged({{0, 100}}, 0), refused) << "a chunk size of zero";
  EXPECT_THAT(layout_judged({{0, huge}}, 1), refused) << "2^64 chunks";
  EXPECT_THAT(layout_judged({{0, 1ULL << 44}}, 1), refused) << "2^44 chunks";
  EXPECT_THAT(layout_judged({{0, huge}}, huge), refused);
  EXPECT_THAT(layout_judged({{huge, 100}}, 32), refused) << "an end beyond 2^64";
  EXPECT_THAT(layout_judged({{0, 100}, {50, 100}}, 32), refused) << "overlapping fragments";
  EXPECT_THAT(layout_judged({{0, 100}, {100, 0}}, 32), refused) << "an empty fragment";
  EXPECT_THAT(layout_judged(std::vector<Range>(1000, Range{0, 1ULL << 40}), 1ULL << 28), refused)
      << "too many chunks in many fragments";
  EXPECT_EQ(layout_judged({{1ULL << 40, 1ULL << 40}}, huge), "began") << "one chunk may have any size";
}

TEST(Sealing, AWrongViewNumberIsNotAnAnswer) {
  CoordinatorHarness harness(1);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = 2;
  harness.receive(1, sealed);
  EXPECT_FALSE(harness.last<NewView>(1));
}

TEST(Sealing, SlowLoadersAreWaitedForWhileTheirHeartbeatsCome) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.receive(1, CoordinatorHarness::sealed());
  for (Time t = 1s; t <= 90s; t += 1s) {
    harness.now = t;
    harness.receive(1, Heartbeat{});
    harness.receive(2, Heartbeat{});
    harness.tick(t);
  }
  ASSERT_FALSE(harness.ended) << harness.ended->reason;
  harness.receive(2, CoordinatorHarness::sealed());
  harness.tick(90s + 100ms);
  EXPECT_TRUE(harness.last<NewView>(1));
  EXPECT_FALSE(harness.ended);
}

TEST(Sealing, OneThatVanishesWhileLoadingMakesRoomForItself) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.now = 4s;
  harness.receive(1, Heartbeat{});
  harness.tick(6s);
  ASSERT_FALSE(harness.ended);
  EXPECT_THAT(harness.said.back(),
              AllOf(HasSubstr("us-1"), HasSubstr("network.detect_timeout"), HasSubstr("free again")));
  auto sealed = CoordinatorHarness::sealed();
  harness.receive(1, sealed);
  EXPECT_FALSE(harness.last<NewView>(1)) << "us-1 is not here";
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  sealed.view = harness.last<Seal>(3)->view;
  harness.receive(3, sealed);
  EXPECT_FALSE(harness.last<NewView>(1)) << "eu-1 has not sealed this view";
  harness.receive(1, sealed);
  EXPECT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
}

TEST(Sealing, OneThatReconnectsWhileLoadingKeepsItsPlace) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  EXPECT_EQ(harness.refusal(3), "") << "the end of its old connection was not noticed yet";
  EXPECT_TRUE(harness.closed.contains(2));
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = harness.last<Seal>(3)->view;
  for (const ConnectionId member : {1, 3}) harness.receive(member, sealed);
  EXPECT_TRUE(harness.last<NewView>(3));
}

TEST(Sealing, WhoIsLostWhileLoadingHasTheWholeJoinTimeoutToComeBack) {
  CoordinatorHarness harness(2);
  for (ConnectionId i : {1, 2}) harness.receive(i, CoordinatorHarness::hello("r" + std::to_string(i)));
  for (Time t = 4s; t <= 100s; t += 4s) {
    harness.now = t;
    for (const ConnectionId i : {1, 2}) harness.receive(i, Heartbeat{});
    harness.tick(t);
  }
  harness.close(2);
  for (Time t = 104s; t <= 160s; t += 4s) {
    harness.now = t;
    harness.receive(1, Heartbeat{});
    harness.tick(t);
  }
  EXPECT_FALSE(harness.ended);
  harness.tick(160s + 1us);
  EXPECT_TRUE(harness.ended);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
