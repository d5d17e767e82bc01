// A worker that joins while others train: how well it trains afterwards, and what its join costs.

#include <numeric>

#include "elastic_run.h"

namespace isthmus {
namespace {

/// Mean of a worker's training losses in these agreed steps; fails the test if it made no step in them.
double mean_loss(const ElasticRun& run, const std::string& worker, std::uint64_t after, std::uint64_t last) {
  double sum = 0;
  int count = 0;
  for (const auto& line : run.metrics(worker)) {
    const auto step = line.value("step", std::uint64_t{0});
    if (!line.contains("loss") || step <= after || step > last) continue;
    sum += line["loss"].get<double>();
    ++count;
  }
  EXPECT_GT(count, 0) << worker << " made no step from " << after << " made no step from " << last;
  return sum / std::max(count, 1);
}

class Join : public ::testing::TestWithParam<const char*> {};

// The newcomer gets the global parameters, which are better than the members' own. Its moments are a
// member's, or start anew at a small learning rate. In both cases it must soon be as good as the others.
TEST_P(Join, ANewcomersLossIsWithinABandOfTheOthers) {
  constexpr std::uint64_t settle = 10, steps = 40;
  constexpr double band =
      0.15;  // nats per byte; losses fall from 5.5 to 1.5 and scatter by .1 between batches
  const std::string setting = std::string("join.inner_state=") + GetParam();
  // A newcomer learns the others' rounds with each heartbeat. Few rounds pass between two heartbeats here, as
  // in any real run.
  ElasticRun run({setting, "run.steps=100000", "inner.schedule=constant", "outer.warmup_steps=10",
                  "network.emulate.rtt=100ms", "network.heartbeat=50ms"});
  run.start({"eu-1", "us-1"});
  ASSERT_TRUE(run.reaches("eu-1", 120)) << run.logs();
  run.add("zz-1");
  const auto begin = run.joined_at("zz-1");
  ASSERT_TRUE(begin) << run.logs();
  for (const auto* worker : {"eu-1", "us-1", "zz-1"})
    ASSERT_TRUE(run.reaches(worker, *begin + settle + steps)) << run.logs();
  run.stop();
  const auto from = *begin + settle, to = from + steps;
  const double others = (mean_loss(run, "eu-1", from, to) + mean_loss(run, "us-1", from, to)) / 2;
  EXPECT_NEAR(mean_loss(run, "zz-1", from, to), others, band) << run.logs();
}
INSTANTIATE_TEST_SUITE_P(InnerState, Join, ::testing::Values("donor"),
                         [](const auto& setting) { return std::string(setting.param); });
INSTANTIATE_TEST_SUITE_P(LongInnerState, Join, ::testing::Values("fresh"),
                         [](const auto& setting) { return std::string(setting.param); });

// There are no rounds after the warm-up, so the members send only the state and heartbeats.
TEST(LongJoinTransfer, CostsTheStateAndFivePercentAtMost) {
  for (const auto& [setting, vectors] :
       {std::pair("join.inner_state=donor", 4.0), {"join.inner_state=fresh", 2.0}}) {
    ElasticRun run(
        {setting, "run.steps=1000000", "outer.warmup_steps=2", "outer.sync_every=1000000", "model.dim=64"});
    run.start({"eu-1", "us-1"});
    ASSERT_TRUE(run.reaches("eu-1", 5) && run.reaches("us-1", 5)) << run.logs();
    const auto before = run.sent("eu-1") + run.sent("us-1");
    run.add("zz-1");
    ASSERT_TRUE(run.joined_at("zz-1")) << run.logs();
    const auto sent = run.sent("eu-1") + run.sent("us-1") - before;
    run.stop();
    const double state = vectors * 4 * run.summary()["parameters"].get<double>();
    EXPECT_GE(sent, state) << setting;
    EXPECT_LE(sent, 1.05 * state) << setting;
  }
}

}  // namespace
}  // namespace isthmus
