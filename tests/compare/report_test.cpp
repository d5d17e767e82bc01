// Figures, verdicts and notes of recorded runs.

#include "compare/report/report.h"

#include "compare/runs/run_state.h"
#include "compare/statistics/words.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "recorded.h"
#include "run/output/lines.h"

namespace isthmus {
namespace {

using app::report_json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr const char* reported_comparison = R"(
base: base.yaml
seeds: [1, 2, 3]
arms:
  data_parallel: {outer.method: data_parallel}
  near: {inner.lr: 0.5}
  worse: {inner.lr: 0.25}
)";

class Report : public ::testing::Test {
 protected:
  void take(const std::string& text) { comparison = folder.comparison(text); }
  nlohmann::ordered_json report() const { return report_json(comparison, records_of(comparison)); }
  std::string verdict(const nlohmann::ordered_json& report, std::size_t arm) const {
    return report["arms"][arm]["verdict"];
  }

  Recorded folder;
  app::Comparison comparison = folder.comparison(reported_comparison);
};

TEST_F(Report, SaysWhatIsWithinNoiseAndWhatIsWorse) {
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, 1'120'000);
  folder.finish_arm(comparison, 1, {1.001, 1.109, 1.199}, 10'000);
  folder.finish_arm(comparison, 2, {1.02, 1.12, 1.221}, 2'240'000);
  const auto json = report();
  EXPECT_EQ(verdict(json, 0), "the baseline: loss 1.1000 (noise 23 %, 3 seeds)");
  EXPECT_THAT(verdict(json, 1),
              AllOf(HasSubstr("within noise of data_parallel (difference +0.3 %, noise 1.2 %, 3 seeds)"),
                    HasSubstr("with 112 times fewer bytes (16 against bf16)"),
                    HasSubstr("more seeds to resolve 0.3 %")));
  EXPECT_EQ(verdict(json, 2),
            "1.8 % worse than data_parallel (noise 0.1 %, 3 seeds) with 2.0 times more bytes");
  EXPECT_TRUE(json["arms"][2]["difference"]["paired"]);
  EXPECT_TRUE(json["arms"][2]["difference"]["resolved"]);
  EXPECT_FALSE(json["arms"][1]["difference"]["resolved"]);
  EXPECT_NEAR(json["target_loss"], 1.05 * 1.1, 1e-9);
  // Between loss 2 at step 20 (2 s) and the end at step 40 (4 s).
  const double second = (2 - 1.155) / (2 - 1.1), first = (2 - 1.155) / (2 - 1.0);
  EXPECT_NEAR(json["arms"][0]["runs"][1]["seconds_to_target"], 2 + 2 * second, 1e-9);
  EXPECT_NEAR(json["arms"][0]["runs"][0]["seconds_to_target"], 2 + 2 * first, 1e-9);
  EXPECT_TRUE(json["arms"][0]["seconds_to_target"].is_null()) << "one seed did not reach the target";
  const auto& band = json["arms"][0]["band"].back();
  EXPECT_NEAR(band["loss"], 1.1, 1e-12);
  EXPECT_EQ(band["low"], 1.0);
  EXPECT_EQ(band["high"], 1.2);
  EXPECT_EQ(json["differences"]["inner.lr"]["near"], "0.5");
  EXPECT_FALSE(json["differences"].contains("run.seed"));
  EXPECT_THAT(json["missing_runs"], SizeIs(0));
}

TEST_F(Report, WithOneSeedNoiseIsUnknown) {
  take("base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}");
  folder.finish_arm(comparison, 0, {1.0}, 1000);
  folder.finish_arm(comparison, 1, {0.9}, 1000);
  const auto json = report();
  EXPECT_THAT(verdict(json, 0), HasSubstr("with 1 seed, so its noise is unknown"));
  EXPECT_EQ(
      verdict(json, 1),
      "10 % better than a with one seed with as many bytes; the noise is unknown: use two seeds or more");
}

TEST_F(Report, EqualToTheBitIsSaid) {
  take("base: base.yaml\nseeds: [1, 2]\narms: {near: {inner.lr: 1}, far: {network.emulate.rtt: 10ms}}");
  folder.finish_arm(comparison, 0, {1.0, 1.1}, 1000);
  folder.finish_arm(comparison, 1, {1.0, 1.1}, 1000);
  EXPECT_EQ(verdict(report(), 1), "the same loss as near at 2 seeds with as many bytes");
}

TEST_F(Report, OnlyPairsOfFinishedRunsCount) {
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, 1000);
  folder.finish_arm(comparison, 1, {1.01, 1.11}, 1000);
  const auto json = report();
  EXPECT_EQ(json["arms"][1]["difference"]["seeds"], 2);
  EXPECT_EQ(verdict(json, 2), "no run has finished");
  EXPECT_THAT(json["missing_runs"], SizeIs(4));
  EXPECT_THAT(json["notes"][0], HasSubstr("4 of 9 runs are not finished"));
}

TEST_F(Report, HopelessAndDivergedRunsAreNotCompared) {
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, 1000);
  folder.finish_arm(comparison, 1, {1.0, 1.1, 1.2}, 1000);
  for (const auto& run : comparison.runs)
    if (run.arm == 1 && run.seed == 2) app::mark_ended(run, {"hopeless", "was stopped at 30 % of its steps"});
  const auto json = report();
  EXPECT_EQ(json["arms"][1]["final_loss"]["count"], 2);
  EXPECT_THAT(verdict(json, 1), HasSubstr("; seed 2 was stopped at 30 % of its steps"));
  EXPECT_TRUE(json["arms"][1]["runs"][1]["final_loss"].is_null());
}

TEST_F(Report, AStrangersCurveIsComparedAtEqualTokens) {
  take(
      "base: base.yaml\nseeds: [1, 2]\narms: {ours: {inner.lr: 1}, theirs: {curve: theirs.csv}, short: "
      "{curve: short.csv}}");
  folder.finish_arm(comparison, 0, {1.0, 1.1}, 1000);
  folder.write("theirs.csv", "tokens,loss\n0,3\n5120,1.4\n15360,0.7\n");  // 1.05 at 10,240
  folder.write("short.csv", "tokens,loss\n0,3\n5120,1.4\n");
  const auto json = report();
  EXPECT_NEAR(json["arms"][1]["final_loss"]["mean"], 1.05, 1e-9);
  EXPECT_FALSE(json["arms"][1]["difference"]["paired"]);
  EXPECT_THAT(verdict(json, 1), HasSubstr("within noise of ours (difference "));
  EXPECT_THAT(json["notes"].dump(), HasSubstr("short.csv ends after 5120 tokens"));
  EXPECT_EQ(verdict(json, 2), "no run has finished");
}

TEST_F(Report, UnequalTokensAreSaid) {
  take("base: base.yaml\narms: {a: {inner.lr: 1}, b: {replicas: 4}}");
  folder.finish_arm(comparison, 0, {1.0}, 1000);
  folder.finish_arm(comparison, 1, {0.9}, 1000);
  EXPECT_THAT(report()["notes"].dump(), HasSubstr("trained on different numbers of tokens"));
}

TEST_F(Report, FitsATerminalAndASpreadsheet) {
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, 1'120'000);
  folder.finish_arm(comparison, 1, {1.001, 1.109, 1.199}, 10'000);
  const auto json = report();
  std::istringstream table(app::terminal_report(json));
  for (std::string line; std::getline(table, line);) {
    const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; });
    EXPECT_LE(columns, 80) << line;
  }
  const auto runs = app::runs_csv(json), curves = app::curves_csv(json);
  EXPECT_THAT(runs, HasSubstr("\"near\",2,"));
  EXPECT_EQ(std::ranges::count(runs, '\n'), 1 + 6);
  EXPECT_THAT(curves, HasSubstr("\"near\",2,10240.0,4.0"));
  EXPECT_EQ(std::ranges::count(curves, '\n'), 1 + 6 * 3);
}

TEST_F(Report, LongNamesAndLargeFiguresFitATerminal) {
  const std::string name(50, 'a');
  take("base: base.yaml\nseeds: [1, 2]\narms: {" + name + "-1: {inner.lr: 1}, " + name +
       "-2: {inner.lr: 2}}");
  folder.finish_arm(comparison, 0, {1.0, 50.0}, 1e12);
  folder.finish_arm(comparison, 1, {900.0, 1.0}, 1e9);
  const auto text = app::terminal_report(report());
  std::istringstream table(text.substr(0, text.find("\n\n")));
  for (std::string line; std::getline(table, line);) EXPECT_LE(app::columns_of(line), 80U) << line;
  EXPECT_THAT(text, ContainsRegex("\na+~a*-1 "));
  EXPECT_THAT(text, ContainsRegex("\na+~a*-2 "));
}

TEST_F(Report, OuterStepsAreMeansOfTheRuns) {
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, 1000);
  folder.finish_arm(comparison, 1, {1.0, 1.1, 1.2}, 1000);
  for (const auto& run : comparison.runs) {
    const auto file = run.folder() / "summary.json";
    if (run.arm != 1) continue;
    auto summary = nlohmann::json::parse(read_all(file));
    summary["outer_steps"] = {{"gain", 1 + static_cast<double>(run.seed)}, {"correlation", -0.25}};
    std::ofstream(file) << summary.dump();
  }
  const auto json = report();
  EXPECT_TRUE(json["arms"][0]["outer_gain"].is_null());
  EXPECT_EQ(json["arms"][1]["outer_gain"], 3);
  EXPECT_EQ(json["arms"][1]["runs"][0]["outer_gain"], 2);
  EXPECT_THAT(app::terminal_report(json), HasSubstr("outer steps: near gain 3.00, correlation -0.25\n"));
  EXPECT_THAT(app::runs_csv(json), HasSubstr(",2.0,-0.25\n"));
}

TEST_F(Report, ACellIsNeverAFormula) {
  take("base: base.yaml\narms: {a: {inner.lr: 1}, b: {curve: '=cmd(\"x\").csv'}}");
  folder.finish_arm(comparison, 0, {1.0}, 1000);
  folder.write("=cmd(\"x\").csv", "0,3\n10240,1\n");
  auto json = report();
  json["arms"][1]["runs"][0]["source"] = "=cmd(\"x\")";
  EXPECT_THAT(app::runs_csv(json), AllOf(HasSubstr("\"'=cmd(\"\"x\"\")\""), Not(HasSubstr(",\"=cmd"))));
}

TEST(RunState, ARunOfAnotherConfigIsNeverMixedIn) {
  const Recorded folder;
  const std::string text = "base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}";
  auto comparison = folder.comparison(text);
  folder.finish_arm(comparison, 1, {1.0}, 1000);
  EXPECT_EQ(app::state_of(comparison.runs[0]).stage, app::RunState::Stage::missing);
  EXPECT_EQ(app::state_of(comparison.runs[1]).stage, app::RunState::Stage::finished);
  comparison = folder.comparison(text + "\nsettings.outer.codec: fp32");
  EXPECT_THAT(error_of([&] { static_cast<void>(app::state_of(comparison.runs[1])); }),
              HasSubstr("outer.codec is 4bit there and fp32 in this comparison"));
  comparison = folder.comparison(
      "base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2, sites: {x: {replicas: 2}}}}");
  EXPECT_THAT(error_of([&] { static_cast<void>(app::state_of(comparison.runs[1])); }),
              HasSubstr("has a run of another config"));
}

TEST(RunState, AStoppedRunGoesOnAndADamagedOneIsNamed) {
  const Recorded folder;
  const auto comparison = folder.comparison("base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}");
  const auto& run = comparison.runs[0];
  folder.finish(run, {{0, 3}, {20, 2}}, 1000);
  const auto summary = run.folder() / "summary.json";
  auto json = nlohmann::json::parse(read_all(summary));
  json["stopped"] = true;
  std::ofstream(summary) << json.dump();
  EXPECT_EQ(app::state_of(run).stage, app::RunState::Stage::unfinished);
  EXPECT_FALSE(app::state_of(run).resumable);
  // A worker is the first replica of its own folder.
  const auto write_checkpoint = [&](const char* name, std::uint64_t step) {
    const auto file = trainer::checkpoint_file(run.folder() / name / "checkpoints", step, 0);
    folder.write(std::filesystem::relative(file, folder / "").string(), "");
  };
  write_checkpoint("replica-0", 20);
  write_checkpoint("replica-1", 10);
  EXPECT_FALSE(app::state_of(run).resumable) << "they have none in common";
  write_checkpoint("replica-1", 20);
  EXPECT_TRUE(app::state_of(run).resumable);
  app::mark_ended(run, {"time", "had its 3 s"});
  EXPECT_EQ(app::state_of(run).ended.how, "time");
  std::ofstream(run.folder() / "ended.json") << "{\"how\": \"well\"}";
  EXPECT_THAT(error_of([&] { static_cast<void>(app::state_of(run)); }), HasSubstr("ended.json is damaged"));
  std::filesystem::remove(run.folder() / "ended.json");
  for (const auto* bad : {"", "{", "[]", "{\"stopped\": 1}", "{\"stopped\": false, \"parameters\": -1}"}) {
    std::ofstream(summary) << bad;
    EXPECT_THAT(error_of([&] { static_cast<void>(app::state_of(run)); }),
                HasSubstr("is not the summary of a run"))
        << bad;
  }
}

TEST(Words, TwoDigitsThatCount) {
  EXPECT_EQ(app::percent(0.003), "0.3 %");
  EXPECT_EQ(app::percent(-0.0161), "1.6 %");
  EXPECT_EQ(app::percent(0.00042), "0.04 %");
  EXPECT_EQ(app::percent(0.00001), "below 0.01 %");
  EXPECT_EQ(app::percent(0.27), "27 %");
  EXPECT_EQ(app::signed_percent(-0.003), "-0.3 %");
  EXPECT_EQ(app::signed_percent(0), "0 %");
  EXPECT_EQ(app::times(112.4), "112");
}

}  // namespace
}  // namespace isthmus
