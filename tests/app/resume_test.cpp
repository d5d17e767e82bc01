// Runs that stop and go on end as if they had never stopped.

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

double loss_at(const nlohmann::json& evaluations, int step) {
  for (const auto& evaluation : evaluations) {
    if (evaluation["step"] == step) return evaluation["loss"];
  }
  ADD_FAILURE() << "no evaluation at step " << step << " in " << evaluations;
  return 0;
}

void expect_stopped_at(const Site& site, int step, const Result& result) {
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto summary = site.summary();
  EXPECT_EQ(summary["steps"], step);
  EXPECT_EQ(summary["stopped"], true);
}

void expect_reference(const Site& site, const Result& result) {
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_EQ(site.hash(), reference().hash);
  const auto summary = site.summary();
  EXPECT_EQ(summary["stopped"], false);
  for (const auto& evaluation : reference().evaluations) {
    EXPECT_EQ(loss_at(summary["evaluations"], evaluation["step"]), evaluation["loss"]) << evaluation;
  }
}

TEST(Resume, GoesOnInTheWarmUpAndWithRoundsInFlight) {
  Site site;
  expect_stopped_at(site, 6, site.launch({"run.stop_after=6"}));
  // Fragment 1 leaves after step 23 and comes back after step 25.
  expect_stopped_at(site, 24, site.resume({"run.stop_after=24"}));
  const auto end = site.resume({"run.stop_after=0"});
  EXPECT_THAT(end.output, HasSubstr("resuming from the checkpoint of step 24"));
  expect_reference(site, end);
}

TEST(Resume, AStopWhereAnEvaluationIsDueReportsItOnce) {
  Site site;
  expect_stopped_at(site, 20, site.launch({"run.stop_after=20"}));
  for (const auto* replica : {"replica-0", "replica-1"}) {
    const auto metrics = read_all(site.run() / replica / "metrics.jsonl");
    const auto first = metrics.find(R"({"step":20,"eval_nats")");
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(metrics.find(R"({"step":20,"eval_nats")", first + 1), std::string::npos) << metrics;
  }
  EXPECT_EQ(loss_at(site.summary()["evaluations"], 20), loss_at(reference().evaluations, 20));
}

TEST(Resume, AFinishedRunStaysAsItIs) {
  Site site;
  ASSERT_EQ(site.launch().status, 0) << site.logs();
  expect_reference(site, site.resume());
}

TEST(Resume, FromAnOlderCheckpointForgetsWhatComesAgain) {
  Site site;
  ASSERT_EQ(site.launch({"run.checkpoint_every=5"}).status, 0) << site.logs();
  for (const auto* replica : {"replica-0", "replica-1"}) {
    for (const auto* step : {"20", "25", "30", "35", "40"}) {
      const auto name = std::string("step_0000000000") + step + "_replica_0.ckpt";
      ASSERT_TRUE(std::filesystem::remove(site.run() / replica / "checkpoints" / name)) << name;
    }
  }
  expect_stopped_at(site, 17, site.resume({"run.stop_after=17"}));
  const auto summary = site.summary();
  EXPECT_EQ(summary["final_eval_loss"], loss_at(summary["evaluations"], 17));
  EXPECT_EQ(summary["evaluations"].back()["step"], 17);
  expect_reference(site, site.resume({"run.stop_after=0"}));
}

TEST(Resume, KeepsErrorFeedbackAndTheBaselinesState) {
  for (const auto* setting : {"outer.error_feedback=true", "outer.method=data_parallel"}) {
    Site whole, parted;
    const Words settings = {"run.steps=20", "outer.warmup_steps=2", "outer.sync_every=5", setting};
    ASSERT_EQ(whole.launch(settings).status, 0) << whole.logs();
    auto stopping = settings;
    stopping.emplace_back("run.stop_after=11");
    expect_stopped_at(parted, 11, parted.launch(stopping));
    const auto end = parted.resume({"run.stop_after=0"});
    ASSERT_EQ(end.status, 0) << end.report() << parted.logs();
    EXPECT_EQ(parted.hash(), whole.hash()) << setting;
  }
}

TEST(Resume, FindsARunFolderThatWasMovedAndRenamed) {
  Site site;
  expect_stopped_at(site, 6, site.launch({"run.stop_after=6"}));
  std::filesystem::rename(site.run(), site / "elsewhere");
  const auto end =
      site.isthmus({"launch", "--resume", (site / "elsewhere").string() + "/", "--set", "run.stop_after=0"});
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(read_all(site / "elsewhere/summary.json"), HasSubstr(reference().hash));
  EXPECT_FALSE(std::filesystem::exists(site.run()));
}

}  // namespace
}  // namespace isthmus
