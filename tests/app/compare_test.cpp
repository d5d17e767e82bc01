// `isthmus compare` from its file to a report, with runs that train.

#include <algorithm>
#include <csignal>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class CompareRuns : public ::testing::Test {
 protected:
  /// Writes a comparison that extends tiny.yaml.
  void write(const std::string& rest) const {
    site.write("both.yaml", "base: tiny.yaml\nout: " + (site / "compared").string() + "\n" + rest);
  }
  Command start(const Words& settings = {}) {
    return site.start(with_settings({"compare", (site / "both.yaml").string()}, settings));
  }
  Result compare(const Words& settings = {}) { return start(settings).wait(); }
  std::filesystem::path folder() const { return site / "compared/both"; }
  nlohmann::json report() const {
    auto json = nlohmann::json::parse(read_all(folder() / "report.json"), nullptr, false);
    if (!json.is_object())
      ADD_FAILURE() << folder() / "report.json"
                    << " is not a report" << site.logs();
    return json;
  }

  Site site;
};

TEST_F(CompareRuns, WhatIsMissingIsRunAndNothingTwice) {
  write(
      "seeds: [1, 2]\nsettings: {run: {steps: 20, sample_tokens: 0}}\narms: {plain: {outer.method: "
      "data_parallel}, "
      "often: {outer.sync_every: 5}}\n");
  const auto first = compare({"seeds=[1]"});
  ASSERT_EQ(first.status, 0) << first.report() << site.logs();
  EXPECT_THAT(report()["arms"][1]["verdict"].get<std::string>(), HasSubstr("than plain with one seed"));
  const auto summary = folder() / "often-seed-1/summary.json";
  const auto before = std::filesystem::last_write_time(summary);

  const auto both = compare();
  ASSERT_EQ(both.status, 0) << both.report() << site.logs();
  EXPECT_THAT(both.output, HasSubstr("4 runs of 2 arms in"));
  EXPECT_THAT(both.output, HasSubstr("2 are finished already"));
  EXPECT_EQ(std::filesystem::last_write_time(summary), before);
  const auto json = report();
  const auto& run = json["arms"][1]["runs"][0];
  const auto said = nlohmann::json::parse(read_all(summary));
  EXPECT_EQ(run["final_loss"], said["final_eval_loss"]);
  EXPECT_EQ(run["tokens"], said["tokens"]);
  EXPECT_EQ(run["steps"], 20);
  EXPECT_NEAR(run["bits_per_parameter_per_step"], said["bits_per_parameter_per_step"], 1e-9);
  EXPECT_NEAR(run["stall_seconds"], said["stall_seconds"], 0.01 + 0.2 * said["stall_seconds"].get<double>());
  EXPECT_EQ(json["arms"][1]["difference"]["seeds"], 2);
  EXPECT_THAT(read_all(folder() / "report.html"), HasSubstr("Chart.js"));

  const auto other = compare({"settings.inner.lr=0.5"});
  EXPECT_EQ(other.status, 2) << other.report();
  EXPECT_THAT(other.output, HasSubstr("has a run of another config: inner.lr is 0.01 there and 0.5"));
}

TEST_F(CompareRuns, CtrlCStopsTheRunsAndTheSameCommandGoesOn) {
  // Latency changes no bit, so both arms end with the same loss unless the stop has changed it.
  write(
      "settings.run: {steps: 150, sample_tokens: 0}\narms: {near: {about: as it is}, far: "
      "{network.emulate.rtt: 150ms}}\n");
  auto command = start();
  ASSERT_TRUE(eventually([&] {
    const auto text = read_all(folder() / "far-seed-1/replica-0/metrics.jsonl");
    return std::ranges::count(text, '\n') > 15 || !command.running();
  }));
  ASSERT_TRUE(command.running()) << command.output();
  command.signal(SIGINT);
  const auto stopped = command.wait();
  EXPECT_EQ(stopped.status, 130) << stopped.report() << site.logs();
  EXPECT_THAT(stopped.output, HasSubstr("stopped; run the same command again"));
  EXPECT_THAT(site.processes(), SizeIs(0));
  EXPECT_THAT(report()["missing_runs"], SizeIs(1));

  const auto resumed = compare();
  ASSERT_EQ(resumed.status, 0) << resumed.report() << site.logs();
  EXPECT_THAT(read_all(folder() / "far-seed-1/replica-0/worker.log"), HasSubstr("resumed from"));
  const auto json = report();
  EXPECT_THAT(json["arms"][1]["verdict"].get<std::string>(),
              HasSubstr("the same loss as near with one seed"));
  EXPECT_EQ(json["arms"][1]["tokens"], json["arms"][0]["tokens"]);
  EXPECT_NEAR(json["arms"][1]["bytes"], json["arms"][0]["bytes"],
              0.3 * json["arms"][0]["bytes"].get<double>())
      << "the bytes of both parts of the run, none counted twice";
}

TEST_F(CompareRuns, FaultsAreDoneAndDivergedRunsAreAResult) {
  write(
      "settings.run: {steps: 120, sample_tokens: 0, eval_every: 30}\n"
      "settings.network.emulate.rtt: 40ms\n"
      "arms:\n"
      "  plain: {outer.sync_every: 12}\n"
      "  lost: {run.restarts: 0, faults: kill replica-1 at step 30, outer.max_local_rounds: 100}\n"
      "  wild: {inner: {lr: 10, warmup_steps: 0, clip: 0, weight_decay: 10, schedule: constant}}\n");
  const auto result = compare();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(result.output, HasSubstr("lost-seed-1: kill replica-1 at step 30 (done at step "));
  EXPECT_THAT(read_all(folder() / "lost-seed-1.log"), HasSubstr("replica-1 was killed by signal 9"));
  const auto json = report();
  EXPECT_EQ(json["arms"][1]["faults"][0], "kill replica-1 at step 30");
  EXPECT_TRUE(json["arms"][1]["difference"].is_object());
  EXPECT_THAT(json["arms"][2]["verdict"].get<std::string>(), HasSubstr("seed 1 diverged: "));
  EXPECT_THAT(json["missing_runs"], SizeIs(0));
  EXPECT_THAT(compare().output, HasSubstr("3 are finished already"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

TEST_F(CompareRuns, RunsEndWithTheirTimeOrWithoutHope) {
  write(
      "settings.run: {steps: 1000000, sample_tokens: 0, eval_every: 10, stop_grace: 60s}\n"
      "budget.time: 1500ms\n"
      "hopeless: {after: 0.3, margin: 0.01}\narms: {plain: {inner.schedule: constant}, still: {inner: "
      "{lr: 0, "
      "schedule: constant}}}\n");
  const auto result = compare();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto json = report();
  EXPECT_THAT(json["arms"][0]["runs"][0]["ended"].get<std::string>(), HasSubstr("used its "));
  EXPECT_GE(json["arms"][0]["seconds"].get<double>(), 1.4);
  EXPECT_THAT(json["arms"][1]["verdict"].get<std::string>(), HasSubstr("seed 1 was stopped after "));
  EXPECT_TRUE(json["arms"][1]["difference"].is_null());
  EXPECT_THAT(json["notes"].dump(), HasSubstr("above the baseline's at two evaluations in a row"));
  EXPECT_THAT(compare().output, HasSubstr("2 are finished already"));
}

TEST_F(CompareRuns, ARunThatFailsEndsAllOfThem) {
  write(
      "settings.run: {steps: 100000, sample_tokens: 0}\narms: {plain: {outer.sync_every: 12}, lost: "
      "{data.path: nowhere}}\n");
  const auto result = site.isthmus({"compare", (site / "both.yaml").string(), "--jobs", "2"});
  EXPECT_EQ(result.status, 3) << result.report();
  EXPECT_THAT(result.output, HasSubstr("lost-seed-1 failed with exit status 3; the end of "));
  EXPECT_THAT(result.output, HasSubstr("nowhere"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

}  // namespace
}  // namespace isthmus
