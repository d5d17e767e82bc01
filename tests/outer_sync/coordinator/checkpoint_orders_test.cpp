// Checkpoints that the coordinator orders: timed, for an operator, for a trainer that leaves.

#include "steering_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

/// Two members that report their step and their checkpoints in heartbeats.
class CheckpointsOfAll : public ::testing::Test {
 protected:
  void SetUp() override { run.run_all({"a", "b"}); }
  static CoordinatorOptions by_time() {
    auto with_interval = steerable_options(2);
    with_interval.checkpoint_interval = 60s;
    return with_interval;
  }
  void beat(ConnectionId connection, std::uint64_t step, std::vector<std::uint64_t> checkpoints = {}) {
    Heartbeat beat;
    beat.view = 1;
    beat.step = step;
    for (const auto of : checkpoints) beat.checkpoints.push_back({of, 1});
    run.receive(connection, beat);
  }
  /// Lets all train one step per second until then.
  void train(Time until, const std::vector<std::uint64_t>& checkpoints = {}) {
    while (run.now < until) {
      run.tick(run.now + 1s);
      const auto step =
          static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(run.now).count());
      for (const ConnectionId connection : {1, 2}) beat(connection, step, checkpoints);
    }
  }
  [[nodiscard]] std::uint64_t ordered(ConnectionId connection) const {
    const auto order = run.last<CheckpointAt>(connection);
    return order ? order->step : 0;
  }

  CoordinatorHarness run{by_time()};
};

TEST_F(CheckpointsOfAll, AreOfAStepThatNobodyHasDoneAndChangeNoView) {
  train(10s);
  run.receive(operator_connection, operator_command("checkpoint"));
  EXPECT_GT(ordered(1), 10U);
  EXPECT_LT(ordered(1), 20U);
  EXPECT_EQ(ordered(2), ordered(1));
  EXPECT_EQ(run.count<Seal>(1), 1U) << "the view must not change, so no agreed setting changes";
  EXPECT_THAT(run.last<Answer>(operator_connection)->text,
              HasSubstr("\"checkpoint_after_step\":" + std::to_string(ordered(1))));
}

/// a makes 100 steps per second. b makes one, until it copies the state of a at step 500, or keeps up with a.
std::uint64_t ordered_after_500_steps(CoordinatorHarness& run, bool keeps_up, double inner_steps_per_second) {
  for (std::uint64_t second = 1; second <= 5; ++second) {
    run.tick(std::chrono::seconds(second));
    for (const ConnectionId connection : {1, 2}) {
      Heartbeat beat;
      beat.view = 1;
      beat.step = connection == 1 || keeps_up || second == 5 ? 100 * second : second;
      beat.inner_steps_per_second = inner_steps_per_second;
      run.receive(connection, beat);
    }
  }
  run.receive(operator_connection, operator_command("checkpoint"));
  return run.last<CheckpointAt>(1)->step;
}

TEST_F(CheckpointsOfAll, SkippedStepsAreNoSpeed) {
  const auto step = ordered_after_500_steps(run, false, 100);
  EXPECT_GE(step, 600U);
  EXPECT_LT(step, 610U);
}

TEST_F(CheckpointsOfAll, TheRecentSpeedOfSeveralCountsAlsoAfterASlowStep) {
  EXPECT_GE(ordered_after_500_steps(run, true, 1), 600U) << "the mean of the inner steps follows slowly";
}

TEST_F(CheckpointsOfAll, ComeWhenTheLastOneIsLongAgo) {
  train(59s);
  EXPECT_EQ(ordered(1), 0U);
  train(62s);
  EXPECT_GT(ordered(1), 60U);
  EXPECT_THAT(run.said, Contains(HasSubstr("(run.checkpoint_interval)")));
  train(100s, {ordered(1)});
  train(110s, {ordered(1), 105});  // 105 was written because of its step number
  train(158s, {105});
  EXPECT_LT(ordered(1), 70U) << "no checkpoint is due while a newer one exists";
  train(172s, {105});
  EXPECT_GT(ordered(1), 160U);
}

TEST_F(CheckpointsOfAll, DisksThatAreSlowAreAskedMoreAndMoreSeldom) {
  train(62s, {1});
  const auto first = ordered(1);
  EXPECT_GT(first, 0U);
  train(120s, {1});
  EXPECT_EQ(ordered(1), first);
  train(125s, {1});
  const auto second = ordered(1);
  EXPECT_GT(second, first) << "a member may have missed it";
  train(240s, {1});
  EXPECT_EQ(ordered(1), second);
  train(250s, {1});
  EXPECT_GT(ordered(1), second);
}

TEST_F(CheckpointsOfAll, WhoHasMissedOneAsksForAnother) {
  train(10s);
  run.receive(2, CheckpointRequest{"it is about to leave"});
  const auto first = ordered(1);
  EXPECT_GT(first, 10U);
  run.receive(1, CheckpointRequest{"it is about to leave"});
  EXPECT_EQ(ordered(1), first) << "that one is still to come";
  beat(1, first + 5);
  run.receive(1, CheckpointRequest{"it was past that step"});
  EXPECT_GT(ordered(2), first + 5);
  EXPECT_THAT(run.said, Contains(HasSubstr("(b: it is about to leave)")));
}

TEST_F(CheckpointsOfAll, WhoIsNewInAViewHearsOfTheOneThatIsToCome) {
  train(10s);
  run.receive(operator_connection, operator_command("checkpoint"));
  const auto orders = run.count<CheckpointAt>(1);
  run.close(2);
  run.seal_all({1});
  EXPECT_EQ(run.count<CheckpointAt>(1), orders + 1);
}

TEST_F(CheckpointsOfAll, NoneIsOrderedBehindTheEndOrWhileTheRunStops) {
  beat(1, 999);
  run.receive(operator_connection, operator_command("checkpoint"));
  EXPECT_THAT(run.last<Answer>(operator_connection)->problem, HasSubstr("the run ends at step 1000"));
  run.receive(51, operator_command("stop"));
  EXPECT_THAT(run.last<Answer>(51)->text, HasSubstr("\"stopping\":true"));
  EXPECT_TRUE(run.last<Hold>(1)) << "as after Ctrl-C at the coordinator";
  EXPECT_THAT(run.said, Contains(HasSubstr("stopping: asked to by operator")));
  run.receive(52, operator_command("checkpoint"));
  EXPECT_THAT(run.last<Answer>(52)->problem, HasSubstr("the run is ending"));
  run.receive(1, CheckpointRequest{"it is about to leave"});
  EXPECT_EQ(ordered(1), 0U);
}

TEST_F(CheckpointsOfAll, AlsoWhereAllStayTogether) {
  auto rigid = by_time();
  rigid.elastic = false;
  CoordinatorHarness baseline{rigid};
  baseline.run_all({"a", "b"});
  baseline.receive(operator_connection, operator_command("checkpoint"));
  EXPECT_TRUE(baseline.last<CheckpointAt>(1));
  EXPECT_FALSE(baseline.ended);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
