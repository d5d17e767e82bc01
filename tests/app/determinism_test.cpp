// A run's result depends on its seed and settings only, not on the network or the clock.

#include <csignal>
#include <thread>

#include "site.h"

namespace isthmus {
namespace {

/// Runs the unchanged experiment under other circumstances; the result must equal the reference to the last
/// bit.
void expect_reference_under(const Words& circumstances) {
  Site site;
  const auto result = site.launch(circumstances);
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
  EXPECT_EQ(site.summary()["evaluations"], reference().evaluations);
}

TEST(Determinism, TheSameSeedGivesTheSameRun) { expect_reference_under({}); }

TEST(Determinism, AnotherSeedGivesAnotherRun) {
  Site site;
  const auto result = site.launch({"run.seed=2"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_NE(site.hash(), reference().hash);
  EXPECT_NE(site.summary()["evaluations"], reference().evaluations);
}

TEST(LongDeterminism, ALongWayChangesNothing) { expect_reference_under({"network.emulate.rtt=100ms"}); }

TEST(Determinism, TwoThreadsRepeatWhatTwoThreadsDid) {
  // With another number of threads, libtorch may sum in another order.
  Site one, other;
  for (auto* site : {&one, &other}) {
    const auto result = site->launch({"trainer.threads=2", "run.steps=12"});
    ASSERT_EQ(result.status, 0) << result.report() << site->logs();
  }
  EXPECT_EQ(one.hash(), other.hash());
  EXPECT_EQ(one.summary()["evaluations"], other.summary()["evaluations"]);
}

TEST(LongDeterminism, MoreLanesChangeNothing) {
  // Small chunks, so that each lane gets some.
  Site one_lane, three_lanes;
  EXPECT_EQ(one_lane.launch({"outer.chunk_elements=2048", "network.lanes=1"}).status, 0) << one_lane.logs();
  EXPECT_EQ(three_lanes.launch({"outer.chunk_elements=2048", "network.lanes=3"}).status, 0)
      << three_lanes.logs();
  EXPECT_EQ(one_lane.hash(), three_lanes.hash());
}

TEST(LongDeterminism, AReplicaThatPausesChangesNothing) {
  Site site;
  auto launch = site.start_launch({"network.emulate.rtt=60ms"});
  ASSERT_TRUE(eventually([&] { return site.metric_lines("replica-1") > 3; })) << site.logs();
  const auto replica = site.process("--name replica-1");
  ASSERT_EQ(kill(replica, SIGSTOP), 0) << "the run ended before it could be disturbed";
  std::this_thread::sleep_for(500ms);
  ASSERT_EQ(kill(replica, SIGCONT), 0);
  const auto result = launch.wait();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
}

class Replicas : public ::testing::TestWithParam<int> {};

TEST_P(Replicas, AllEndAlike) {
  Site site;
  const auto result = site.launch({"replicas=" + std::to_string(GetParam()), "run.steps=20",
                                   "outer.warmup_steps=4", "outer.sync_every=5"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_EQ(summary["global_hash"].size(), static_cast<std::size_t>(GetParam()));
  EXPECT_NE(site.hash(), "");
  EXPECT_LT(summary["final_eval_loss"].get<double>(), summary["initial_eval_loss"].get<double>());
}
INSTANTIATE_TEST_SUITE_P(Determinism, Replicas, ::testing::Values(1, 4));
INSTANTIATE_TEST_SUITE_P(LongDeterminism, Replicas, ::testing::Values(3));

}  // namespace
}  // namespace isthmus
