// `compare --no-run` on recorded runs: the files it writes and the input it refuses.

#include "compare/command.h"

#include <fmt/format.h>

#include "command.h"
#include "full_disk.h"
#include "recorded.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* comparison_text =
    "base: base.yaml\nseeds: [1, 2]\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}";

class Compare : public ::testing::Test {
 protected:
  Compare() {
    folder.finish_arm(comparison, 0, {1.0, 1.1}, 1000);
    folder.finish_arm(comparison, 1, {0.9, 1.0}, 1000);
    claim(R"({"name":"comparison","size":""})");
  }
  void claim(const std::string& text) const { std::ofstream(comparison.folder / "comparison.json") << text; }
  Result compare(std::vector<std::string> more = {"--no-run"}) const {
    std::vector<std::string> words = {coordinator_program, "compare", folder.file(), "--set",
                                      "out=" + (folder / "out").string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words, folder / "command.log");
  }

  Recorded folder;
  app::Comparison comparison = folder.comparison(comparison_text);
};

TEST_F(Compare, WritesAllFormsOfOneReport) {
  const auto result = compare({"--no-run", "--json"});
  ASSERT_EQ(result.status, 0) << result.report();
  const auto shown = nlohmann::json::parse(result.output, nullptr, false);
  ASSERT_TRUE(shown.is_object()) << "--json must print one document and nothing else: " << result.output;
  EXPECT_EQ(shown, nlohmann::json::parse(read_all(comparison.folder / "report.json")));
  EXPECT_NEAR(shown["arms"][1]["difference"]["relative"], -0.1 / 1.05, 1e-9);
  for (const auto* file : {"report.html", "runs.csv", "curves.csv"})
    EXPECT_GT(std::filesystem::file_size(comparison.folder / file), 100U);
  const auto plain = compare();
  EXPECT_EQ(plain.status, 0);
  EXPECT_THAT(plain.output, HasSubstr("b: 9.5 % better than a (noise below 0.01 %, 2 seeds)"));
  EXPECT_THAT(plain.output, HasSubstr((comparison.folder / "report.html").string()));
}

TEST_F(Compare, RunsThatAreThereAreComparedWhereverTheyAre) {
  std::filesystem::rename(comparison.runs[0].folder(), folder / "first");
  std::filesystem::rename(comparison.runs[2].folder(), folder / "second");
  const auto text =
      fmt::format("name: made\narms:\n  a: {{runs: [first/, second]}}\n  b: {{runs: [{}, {}]}}\n",
                  comparison.runs[1].folder().string(), comparison.runs[3].folder().string());
  static_cast<void>(folder.write("comparison.yaml", text));
  const auto result = compare({});  // with nothing to run, no program that trains is needed
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output, HasSubstr("b: 9.5 % better than a (noise below 0.01 %, 2 seeds)"));
  const auto report = nlohmann::json::parse(read_all(folder / "out/made/report.json"));
  EXPECT_EQ(report["seeds"], nlohmann::json::parse("[1, 2]"));
  EXPECT_EQ(report["differences"].size(), 1U) << report["differences"] << ": expected only inner.lr";

  std::filesystem::remove(folder / "second/summary.json");
  const auto unfinished = compare({});
  EXPECT_EQ(unfinished.status, 3) << unfinished.report();
  EXPECT_THAT(unfinished.output, HasSubstr("second has a run that is not finished"));
  static_cast<void>(folder.write("comparison.yaml", "arms: {a: {runs: [first, first]}, b: {runs: first}}"));
  const auto twice = compare({});
  EXPECT_EQ(twice.status, 2);
  EXPECT_THAT(twice.output, HasSubstr("both have the seed 1"));
}

TEST_F(Compare, AFolderOfSomethingElseIsLeftAlone) {
  for (const auto* whose : {R"({"name":"other","size":""})", R"({"name":"comparison","size":"gpu"})", "]"}) {
    claim(whose);
    const auto result = compare();
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr("is the folder of another comparison"));
  }
  std::filesystem::remove(comparison.folder / "comparison.json");
  const auto unclaimed = compare({});
  EXPECT_EQ(unclaimed.status, 2);
  EXPECT_THAT(unclaimed.output, HasSubstr("is not the folder of a comparison"));
  EXPECT_FALSE(std::filesystem::exists(comparison.folder / "report.json"));
}

TEST_F(Compare, WithoutAProgramThatTrainsItSaysSo) {
  std::filesystem::remove_all(comparison.runs[0].folder());
  // The folder of this copy does not contain isthmus.
  std::filesystem::create_directory(folder / "bin");
  std::filesystem::copy(coordinator_program, folder / "bin/isthmus-coordinator");
  const auto result = run_command({folder / "bin/isthmus-coordinator", "compare", folder.file(), "--set",
                                   "out=" + (folder / "out").string()},
                                  folder / "command.log");
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.output, HasSubstr("pass --no-run to report on the existing runs"));
}

TEST_F(Compare, NothingThereYetIsSaid) {
  std::filesystem::remove_all(comparison.folder);
  const auto result = compare();
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.output, HasSubstr("nothing has been run yet"));
  EXPECT_FALSE(std::filesystem::exists(comparison.folder));
}

TEST_F(Compare, OnAFullDiskTheReportBeforeStays) {
  ASSERT_EQ(compare().status, 0);
  const auto before = read_all(comparison.folder / "report.html");
  folder.finish_arm(comparison, 1, {2.0, 2.1}, 1000);
  {
    const FullDisk disk(100'000);
    const auto said = error_of([&] {
      static_cast<void>(app::run_compare({.file = folder.file(),
                                          .size = {},
                                          .assignments = {"out=" + (folder / "out").string()},
                                          .no_run = true,
                                          .program = {}}));
    });
    EXPECT_THAT(said, HasSubstr("report.html"));
  }
  EXPECT_EQ(read_all(comparison.folder / "report.html"), before);
  for (const auto& entry : std::filesystem::directory_iterator(comparison.folder))
    EXPECT_NE(entry.path().extension(), ".partial") << entry.path();
  EXPECT_EQ(compare().status, 0);
  EXPECT_NE(read_all(comparison.folder / "report.html"), before);
}

}  // namespace
}  // namespace isthmus
