// The training samples of a run, as `isthmus data ledger` reports them: none twice and no gap, and after a
// kill the exceptions are listed.

#include "elastic_run.h"
#include "isthmus/base/samples.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string report(const std::filesystem::path& run) {
  Site site;
  const auto result = site.isthmus({"data", "ledger", run.string()});
  EXPECT_EQ(result.status, 0) << result.report();
  return result.output;
}

TEST(Ledger, ARunWithoutFaultsHasNothingTwiceAndNoGap) {
  Site site;
  ASSERT_EQ(site.launch().status, 0) << site.logs();
  EXPECT_THAT(report(site.run()), HasSubstr("no sequence twice, no gap"));
}

TEST(Ledger, ARunThatWasStoppedGoesOnAtTheNextSequence) {
  Site site;
  ASSERT_EQ(site.launch({"run.stop_after=24"}).status, 0) << site.logs();
  const auto stopped = report(site.run());
  EXPECT_THAT(stopped, HasSubstr("step 24"));
  EXPECT_THAT(stopped, Not(HasSubstr("twice in")));
  ASSERT_EQ(site.resume({"run.stop_after=0"}).status, 0) << site.logs();
  EXPECT_THAT(report(site.run()), HasSubstr("no sequence twice, no gap"));
}

TEST(Ledger, ADataParallelRunHasOneToo) {
  Site site;
  ASSERT_EQ(site.launch({"outer.method=data_parallel"}).status, 0) << site.logs();
  EXPECT_THAT(report(site.run()), HasSubstr("no sequence twice, no gap"));
}

TEST(Ledger, WhatAKilledReplicaHadUnderWayIsDoneByOthers) {
  ElasticRun run(
      {"replicas=3", "run.steps=100000", "inner.schedule=constant", "outer.warmup_steps=2", "inner.batch=8"});
  run.start({"eu-1", "us-1", "zz-1"});
  for (const auto* worker : {"eu-1", "us-1", "zz-1"}) ASSERT_TRUE(run.reaches(worker, 30)) << run.logs();
  run.kill("zz-1");
  const auto killed_at = run.metrics("eu-1").back().value("step", std::uint64_t{0});
  // Each of the two first trains on 2,048 sequences of its own, 8 per step, and then on 1,024 of the lost
  // replica's.
  ASSERT_TRUE(run.reaches("eu-1", killed_at + 450) && run.reaches("us-1", killed_at + 450)) << run.logs();
  run.stop();
  const auto text = report(run.site().run());
  EXPECT_THAT(text, Not(HasSubstr("gaps, not trained"))) << run.logs();
  const auto ledger = nlohmann::json::parse(read_all(run.site().run() / "eu-1/ledger.json"));
  std::vector<SampleRange> lost;
  for (const auto& range : ledger["done"]) {
    if (range[0] == 2) lost.push_back({range[0], range[1], range[2]});
  }
  ASSERT_FALSE(lost.empty()) << text;
  EXPECT_EQ(lost.front().begin, 0U) << text;
  EXPECT_GT(lost.front().end, 8 * killed_at + 1500)
      << text << "the others must have trained on the lost replica's samples";
  // If the run stopped within their next blocks, the second replica's block is ahead of the first one's.
  EXPECT_LE(lost.size(), 2U) << text;
  for (std::size_t i = 1; i < lost.size(); ++i)
    EXPECT_LE(lost[i].begin - lost[i - 1].end, 1024U) << text << "the gap must be at most one block";
  // Samples in rounds of some fragments but not of others are trained on again: at most an interval and a
  // delay, of ten and two steps, and the step being made.
  std::uint64_t twice = 0;
  for (const auto& range : ledger["twice"]) {
    EXPECT_EQ(range[0], 2) << text << "only samples of the killed replica may be there twice";
    twice += range[2].get<std::uint64_t>() - range[1].get<std::uint64_t>();
  }
  EXPECT_LE(twice, 8 * 14) << text;
  EXPECT_EQ(twice > 0, text.find("twice in a fragment's rounds: track 2") != std::string::npos) << text;
}

TEST(Ledger, AFolderWithoutOneIsNamed) {
  Site site;
  const auto result = site.isthmus({"data", "ledger", (site / "nowhere").string()});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("nowhere: no replica has a ledger"));
  std::filesystem::create_directories(site / "run/a");
  site.write("run/a/ledger.json", "{\"version\": 1");
  const auto damaged = site.isthmus({"data", "ledger", (site / "run").string()});
  EXPECT_NE(damaged.status, 0);
  EXPECT_THAT(damaged.output, HasSubstr("run/a/ledger.json: not a ledger"));
}

}  // namespace
}  // namespace isthmus
