// Reading the curves of runs and of foreign files.

#include "compare/runs/run_record.h"
#include "recorded.h"

namespace isthmus {
namespace {

using app::CurvePoint;
using app::read_curve;
using app::read_run;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* curve_comparison = "base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}";

TEST(RunRecord, IsWhatTheRunSaysOfItself) {
  const Recorded folder;
  const auto comparison = folder.comparison(curve_comparison);
  folder.finish(comparison.runs[0], {{0, 3}, {20, 2}, {40, 1}}, 8000);
  const auto record = read_run(comparison.runs[0]);
  ASSERT_THAT(record.curve, SizeIs(3));
  EXPECT_EQ(record.curve[1].tokens, 20 * 256);
  EXPECT_NEAR(*record.curve[1].seconds, 2.0, 1e-9);
  EXPECT_NEAR(*record.curve[1].bytes, 4000, 1e-9);
  EXPECT_EQ(record.curve[1].loss, 2);
  EXPECT_EQ(record.tokens(), 40 * 256);
  EXPECT_EQ(record.steps, 40U);
  EXPECT_EQ(record.parameters, 1000U);
  EXPECT_NEAR(*record.bits, 8.0 * 4000 / 1000 / 40, 1e-9) << "half of its bytes are payload";
  EXPECT_NEAR(*record.utilization, 0.9, 1e-9);
  EXPECT_NEAR(*record.stall_seconds, 0.4, 1e-9);
}

TEST(RunRecord, OfARunThatWentBackToACheckpointTokensCountOnceAndBytesTwice) {
  const Recorded folder;
  const auto comparison = folder.comparison(curve_comparison);
  const auto& run = comparison.runs[0];
  folder.finish(run, {{0, 3}, {20, 2}, {40, 1}}, 8000);
  for (const auto* name : {"replica-0", "replica-1"}) {
    const auto file = run.folder() / name / "metrics.jsonl";
    const auto text = read_all(file);  // 30 steps, then from step 11 on with restarted counters
    std::string first, second;
    std::size_t lines = 0;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line); ++lines) {
      if (lines < 30) first += line + "\n";
      if (lines < 10) continue;
      auto json = nlohmann::json::parse(line);
      json["bytes_sent"] = json["bytes_sent"].get<double>() - 2000;
      second += json.dump() + "\n";
    }
    std::ofstream(file) << first << "{\"step\": 1, \"hal\n[3]\n"
                        << std::string(100'000, 'x') << "\n"
                        << second;
  }
  const auto record = read_run(run);
  EXPECT_EQ(record.tokens(), 40 * 256);
  EXPECT_NEAR(*record.curve.back().seconds, 6.0, 1e-9);
  // 6,000 before; the summary's 8,000 belong to the last part only.
  EXPECT_NEAR(*record.curve.back().bytes, 14000, 1e-9);
}

TEST(RunRecord, WithoutEvaluationsThereIsNothingToCompare) {
  const Recorded folder;
  const auto comparison = folder.comparison(curve_comparison);
  folder.finish(comparison.runs[0], {{40, 1}}, 8000);
  std::ofstream(comparison.runs[0].folder() / "metrics.jsonl") << "{\"step\": 40, \"eval_loss\": \"nan\"}\n";
  EXPECT_THAT(error_of([&] { static_cast<void>(read_run(comparison.runs[0])); }),
              HasSubstr("no evaluations of a run"));
}

TEST(Curve, ColumnsAreFoundByName) {
  const TemporaryFolder folder;
  const auto csv =
      folder.write("theirs.csv", "\xef\xbb\xbf# theirs\nloss, seconds ,tokens\r\n3,0,0\r\n\"2.5\",7,1e6\r\n");
  const auto record = read_curve(csv);
  ASSERT_THAT(record.curve, SizeIs(2));
  EXPECT_FALSE(record.seed);
  EXPECT_EQ(record.curve[1].tokens, 1e6);
  EXPECT_EQ(record.curve[1].seconds, 7);
  EXPECT_EQ(record.curve[1].bytes, std::nullopt);
  EXPECT_EQ(record.curve[1].loss, 2.5);
  EXPECT_THAT(read_curve(folder.write("plain.csv", "0,3\n10,2\n20,1.5")).curve, SizeIs(3));
}

TEST(Curve, NonsenseIsRefusedByLine) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "the file has 0 points"},
      {"tokens,loss\n1,2\n", "the file has 1 points"},
      {"step,loss\n1,2\n", "no column tokens"},
      {"0,3\n10,two\n", ":2: loss is 'two'; expected a number"},
      {"0,3\n10,nan\n", ":2: loss is 'nan'"},
      {"0,3\n10,-1\n", ":2: loss is '-1'"},
      {"0,3\n10\n", ":2: the line has no loss"},
      {"0,3\n10,2\n10,2\n", ":3: tokens is 10 after 10; expected a higher number"},
      {std::string("0,3\n1,\0\x1b[31m\n", 12), "loss is '??[31m'"},
      {std::string(200'000, ','), "no column tokens"},
  };
  for (const auto& [text, said] : cases)
    EXPECT_THAT(error_of([&] { static_cast<void>(read_curve(folder.write("bad.csv", text))); }),
                HasSubstr(said))
        << text.substr(0, 60);
  EXPECT_THAT(error_of([&] { static_cast<void>(read_curve(folder / "none.csv")); }),
              HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { static_cast<void>(read_curve(folder.path())); }), HasSubstr("it is a folder"));
}

TEST(Curve, BetweenTwoPointsByAStraightLine) {
  const std::vector<CurvePoint> curve = {{0, 0, 0, 3}, {100, 10, 1000, 2}, {200, 20, 2000, 1.5}};
  EXPECT_EQ(app::loss_at(curve, 50), 2.5);
  EXPECT_EQ(app::loss_at(curve, 200), 1.5);
  EXPECT_EQ(app::loss_at(curve, 201), std::nullopt);
  EXPECT_EQ(app::first_at(curve, 2.5, &CurvePoint::seconds), 5);
  EXPECT_EQ(app::first_at(curve, 1.75, &CurvePoint::bytes), 1500);
  EXPECT_EQ(app::first_at(curve, 1, &CurvePoint::seconds), std::nullopt);
}

}  // namespace
}  // namespace isthmus
