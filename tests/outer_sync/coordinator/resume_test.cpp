// Checkpoints at the coordinator: which one a resumed run starts from, and the newest that all have.

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  auto options = CoordinatorHarness::default_options(2);
  options.least = 2;
  CoordinatorHarness harness(options);
  for (std::size_t i = 0; i < 2; ++i) {
    auto hello = CoordinatorHarness::hello("r" + std::to_string(i));
    hello.resume = true;
    hello.checkpoints = of_steps({100 + i});
    harness.receive(i + 1, hello);
  }
  ASSERT_TRUE(harness.ended);
  EXPECT_THAT(harness.ended->reason,
              HasSubstr("no checkpoint is complete and the same on at least 2 of the replicas"));
}

Hello resuming(const std::string& name, const std::vector<std::uint64_t>& steps) {
  auto hello = CoordinatorHarness::hello(name);
  hello.resume = true;
  hello.checkpoints = of_steps(steps);
  return hello;
}

/// The steps from which each of three replicas resumes that have these checkpoints; 0: it copies the state.
std::vector<std::uint64_t> resumes_at(const std::vector<std::vector<std::uint64_t>>& checkpoints,
                                      std::size_t least) {
  auto options = CoordinatorHarness::default_options(checkpoints.size());
  options.least = least;
  CoordinatorHarness harness(options);
  for (std::size_t i = 0; i < checkpoints.size(); ++i)
    harness.receive(i + 1, resuming("r" + std::to_string(i), checkpoints[i]));
  std::vector<std::uint64_t> steps;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const auto seal = harness.last<Seal>(i + 1);
    steps.push_back(seal ? seal->resume_step : 0);
  }
  return steps;
}

TEST(Resuming, AReplicaThatWasAbsentDoesNotTakeTheOthersBack) {
  using Steps = std::vector<std::uint64_t>;
  // r2 left after step 120, and wrote a checkpoint of its own.
  EXPECT_EQ(resumes_at({{300, 400, 500}, {300, 400, 500}, {100, 120}}, 2), (Steps{500, 500, 0}));
  // r2 stopped before it had written its newest. It keeps the state of its own optimizer.
  EXPECT_EQ(resumes_at({{300, 400, 500}, {300, 400, 500}, {300, 400}}, 2), (Steps{400, 400, 400}));
  // Two replicas, each of which may train without the other.
  EXPECT_EQ(resumes_at({{400, 500}, {300}}, 1), (Steps{500, 0}));
  EXPECT_EQ(resumes_at({{400, 500}, {300}}, 2), (Steps{0, 0})) << "the run fails";
  // r3 was absent. r2 has its own state of step 500, and keeps it.
  EXPECT_EQ(resumes_at({{500, 510}, {500, 510}, {490, 500}, {100}}, 2), (Steps{500, 500, 500, 0}));
}

TEST(Resuming, TheCheckpointTakenIsCompleteUntilANewerOneIs) {
  CoordinatorHarness harness(2);
  for (const ConnectionId member : {1, 2})
    harness.receive(member, resuming("r" + std::to_string(member), {200}));
  harness.seal_all({1, 2});
  EXPECT_EQ(harness.coordinator.complete_checkpoint(), 200U);
  const auto beat = [&](ConnectionId from, const std::vector<std::uint64_t>& steps) {
    Heartbeat heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {}, .health = {}};
    heartbeat.checkpoints = of_steps(steps);
    harness.receive(from, heartbeat);
  };
  beat(1, {});
  beat(2, {});
  EXPECT_EQ(harness.coordinator.common_checkpoint(), 0U) << "members report the checkpoints that they write";
  EXPECT_EQ(harness.coordinator.complete_checkpoint(), 200U);
  beat(1, {300});
  EXPECT_EQ(harness.coordinator.complete_checkpoint(), 200U) << "r2 does not have it yet";
  beat(2, {300});
  EXPECT_EQ(harness.coordinator.complete_checkpoint(), 300U);
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
  EXPECT_THAT(harness.said,
              testing::Contains(HasSubstr("r1 lacks the checkpoint of step 200: it copies the state")));
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
  EXPECT_THAT(harness.ended->reason, AllOf(HasSubstr("r1 has checkpoints up to step 100, r2 has none"),
                                           HasSubstr("at least 2 of the replicas")));
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
    Heartbeat heartbeat{.number = 1, .view = 1, .unreachable = {}, .fragments = {}, .health = {}};
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

}  // namespace
}  // namespace isthmus::outer_sync::protocol
