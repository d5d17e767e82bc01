// The lines that the coordinator keeps for its members, and their limits.

#include "coordinator/records/gathered_folders.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <vector>

#include "event_reader.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

using outer_sync::protocol::Gathered;
using outer_sync::protocol::RecordKind;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr std::uint64_t limit = 100'000;

class GatheredFoldersTest : public ::testing::Test {
 protected:
  [[nodiscard]] GatheredFolders folders(bool fresh = true) {
    return {folder_.path(),
            fresh,
            limit,
            [this](const std::string& text) { said_.push_back(text); },
            [this](const std::string& why) { stopped_.push_back(why); },
            [this] { return free_; }};
  }
  static bool keep(GatheredFolders& folders, RecordKind kind, const std::string& line, int times = 1,
                   const std::string& member = "eu-1") {
    const Gathered news{member, 1, 0, std::vector<outer_sync::protocol::Record>(10, {kind, line})};
    bool kept = true;
    for (int i = 0; i < times; i += 10) kept = folders.keep(news) && kept;
    return kept;
  }
  /// Passes lines of these steps on.
  static bool steps(GatheredFolders& folders, std::uint64_t first, std::uint64_t last, double loss = 1,
                    std::uint64_t incarnation = 1) {
    Gathered news{"eu-1", incarnation, 0, {}};
    for (auto step = first; step <= last; ++step)
      news.records.push_back({RecordKind::metrics, fmt::format(R"({{"step":{},"loss":{}}})", step, loss)});
    return folders.keep(news);
  }
  [[nodiscard]] std::map<std::uint64_t, float> losses() const {
    return events::shown_in(folder_ / "eu-1")["train/loss"];
  }
  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
      sum += entry.is_regular_file() ? entry.file_size() : 0;
    return sum;
  }

  TemporaryFolder folder_;
  std::vector<std::string> said_, stopped_;
  std::uint64_t free_ = 1'000'000'000'000;
};

TEST_F(GatheredFoldersTest, MetricsEndAtTheLimitWhichIsSaidOnce) {
  auto folders = this->folders();
  const std::string line = R"({"step":1,"loss":3.25,"sum":)" + std::string(300, '9') + "}";
  EXPECT_TRUE(keep(folders, RecordKind::metrics, line, 20'000));
  EXPECT_THAT(said_,
              ElementsAre(HasSubstr("no more metrics of eu-1 are gathered, because run.gather_limit is")));
  EXPECT_LE(size(), limit);
  const auto kept = read_all(folder_ / "eu-1/metrics.jsonl");
  EXPECT_GT(kept.size(), limit / 3);
  EXPECT_TRUE(kept.ends_with(line + "\n")) << "every line must be complete";
  EXPECT_TRUE(keep(folders, RecordKind::log, "still kept")) << "the log has its own part of the limit";
  EXPECT_THAT(read_all(folder_ / "eu-1/gathered.log"), HasSubstr("still kept"));
}

TEST_F(GatheredFoldersTest, OfALogTheNewestLinesAreKept) {
  auto folders = this->folders();
  EXPECT_TRUE(keep(folders, RecordKind::log, "the first line"));
  EXPECT_TRUE(keep(folders, RecordKind::log, std::string(500, 'x'), 20'000));
  EXPECT_TRUE(keep(folders, RecordKind::log, "the last line"));
  EXPECT_LE(size(), limit);
  EXPECT_TRUE(read_all(folder_ / "eu-1/gathered.log").ends_with("the last line\n"));
  EXPECT_GT(std::filesystem::file_size(folder_ / "eu-1/gathered.log.old"), limit / 10);
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_THAT(stopped_, IsEmpty()) << "lines that the log dropped must be accounted for";
}

TEST_F(GatheredFoldersTest, WhatACoordinatorBeforeHasKeptCounts) {
  const std::string line = R"({"step":1,"loss":3.25})";
  for (int coordinators = 0; coordinators < 3; ++coordinators) {
    auto folders = this->folders(coordinators == 0);
    EXPECT_TRUE(keep(folders, RecordKind::metrics, line, 20'000));
    EXPECT_TRUE(keep(folders, RecordKind::log, std::string(500, 'x'), 2'000));
  }
  EXPECT_LE(size(), limit);
}

TEST_F(GatheredFoldersTest, EachMemberHasALimitOfItsOwn) {
  auto folders = this->folders();
  EXPECT_TRUE(keep(folders, RecordKind::metrics, R"({"step":1})", 50'000, "eu-1"));
  EXPECT_TRUE(keep(folders, RecordKind::metrics, R"({"step":2})", 10, "us-1"));
  EXPECT_THAT(read_all(folder_ / "us-1/metrics.jsonl"), HasSubstr(R"({"step":2})"));
}

TEST_F(GatheredFoldersTest, RoomIsLeftForTheRunsOwnFiles) {
  auto folders = this->folders();
  EXPECT_TRUE(keep(folders, RecordKind::log, "before"));
  const auto before = size();
  free_ = GatheredFolders::min_free_bytes - 1;
  EXPECT_TRUE(keep(folders, RecordKind::log, "meanwhile", 100))
      << "lines must be wanted again once there is room";
  EXPECT_TRUE(keep(folders, RecordKind::metrics, R"({"step":1})", 100, "us-1"));
  free_ = GatheredFolders::min_free_bytes;
  EXPECT_TRUE(keep(folders, RecordKind::log, "at the edge", 100));
  EXPECT_EQ(size(), before);
  EXPECT_THAT(stopped_, ElementsAre(AllOf(HasSubstr("stopped gathering lines of the members"),
                                          HasSubstr("64 MB are free on the disk of"),
                                          HasSubstr("free space on that disk"))));
  free_ = 2 * GatheredFolders::min_free_bytes;
  EXPECT_TRUE(keep(folders, RecordKind::log, "after"));
  EXPECT_THAT(read_all(folder_ / "eu-1/gathered.log"), AllOf(HasSubstr("before"), HasSubstr("after")));
  EXPECT_THAT(said_, ElementsAre("gathering lines of the members again"));
}

TEST_F(GatheredFoldersTest, AllMembersTogetherHaveALimitAlsoThoseOfACoordinatorBefore) {
  constexpr auto all = GatheredFolders::max_folders_over_limit * limit;
  const std::string line = R"({"step":1,"loss":3.25})";
  for (int m = 0; m < 50; ++m) {
    auto folders = this->folders(m == 0);
    EXPECT_TRUE(keep(folders, RecordKind::metrics, line, 3'000, "spot-" + std::to_string(m)));
  }
  EXPECT_GT(size(), all * 9 / 10);
  EXPECT_LT(size(), all + limit);
  EXPECT_THAT(stopped_.front(), HasSubstr("take 2 MB, the maximum of 16 times run.gather_limit"));
}

TEST_F(GatheredFoldersTest, CurvesAreWrittenOnceWhenACoordinatorGetsLinesAgain) {
  {
    auto before = this->folders();
    EXPECT_TRUE(steps(before, 1, 20));
  }
  auto folders = this->folders(false);
  EXPECT_TRUE(steps(folders, 15, 25));  // it had not acknowledged the lines from 15 on
  EXPECT_EQ(losses().size(), 25U);
  EXPECT_EQ(event_files_in(folder_ / "eu-1").size(), 2U) << "one for each coordinator";
  const auto lines = read_all(folder_ / "eu-1/metrics.jsonl");
  EXPECT_EQ(std::ranges::count(lines, '\n'), 25) << lines;
}

TEST_F(GatheredFoldersTest, CurvesOfARunThatWentBackShowTheNewValues) {
  auto folders = this->folders();
  EXPECT_TRUE(steps(folders, 1, 20));
  EXPECT_TRUE(steps(folders, 11, 13, 2, 2));  // restarted from a checkpoint
  EXPECT_EQ(losses().size(), 13U);
  EXPECT_EQ(losses().at(10), 1);
  EXPECT_EQ(losses().at(11), 2);
  EXPECT_EQ(event_files_in(folder_ / "eu-1").size(), 1U) << "a member's restarts must not make files";
  EXPECT_TRUE(steps(folders, 13, 14, 4, 3));  // restarted from a checkpoint of the step before the newest
  EXPECT_EQ(losses().at(12), 2);
  EXPECT_EQ(losses().at(13), 4);
  auto resumed = this->folders(false);
  EXPECT_TRUE(steps(resumed, 6, 8, 3, 4));
  EXPECT_EQ(losses().size(), 8U);
  EXPECT_EQ(losses().at(8), 3);
  auto again = this->folders(false);
  EXPECT_TRUE(steps(again, 8, 9, 5, 5));
  EXPECT_EQ(losses().at(8), 5);
}

TEST_F(GatheredFoldersTest, CurvesOfAnOlderRunAreSetAside) {
  {
    auto before = this->folders();
    EXPECT_TRUE(steps(before, 1, 20));
  }
  auto folders = this->folders();
  EXPECT_TRUE(steps(folders, 1, 3, 2));
  EXPECT_THAT(losses(), ElementsAre(Pair(1, 2.0F), Pair(2, 2.0F), Pair(3, 2.0F)));
}

TEST_F(GatheredFoldersTest, CurvesCountInTheLimit) {
  const std::string back = R"({"step":1,"loss":3.25})", ahead = R"({"step":2,"loss":3.25})";
  for (int coordinators = 0; coordinators < 3; ++coordinators) {
    auto folders = this->folders(coordinators == 0);
    for (int i = 0; i < 500; ++i) {
      EXPECT_TRUE(keep(folders, RecordKind::metrics, ahead));
      EXPECT_TRUE(keep(folders, RecordKind::metrics, back));
    }
    EXPECT_TRUE(keep(folders, RecordKind::log, std::string(500, 'x'), 2'000));
  }
  EXPECT_LE(size(), limit);
  EXPECT_GT(size(), limit / 2);
}

TEST_F(GatheredFoldersTest, RecordsForAuditsHaveAFileAndALimitOfTheirOwn) {
  const auto records = [&] {
    std::ifstream in(folder_ / "eu-1/audit.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
      if (!line.empty()) lines.push_back(line);
    }
    return lines;
  };
  {
    auto folders = this->folders();
    EXPECT_TRUE(folders.keep(
        {"eu-1", 1, 0, {{RecordKind::audit, R"({"snapshot":1})"}, {RecordKind::metrics, R"({"step":1})"}}}));
    EXPECT_THAT(records(), ElementsAre(R"({"snapshot":1})"));
  }
  auto folders = this->folders(false);
  EXPECT_TRUE(folders.keep(
      {"eu-1", 1, 0, {{RecordKind::audit, R"({"snapshot":1})"}, {RecordKind::audit, R"({"snapshot":2})"}}}));
  EXPECT_THAT(records(), SizeIs(2)) << "its member sent the first line again to the next coordinator";
  EXPECT_TRUE(keep(folders, RecordKind::audit, std::string(500, 'x'), 20'000));
  EXPECT_LE(std::filesystem::file_size(folder_ / "eu-1/audit.jsonl"), limit);
  EXPECT_THAT(said_, Contains(HasSubstr("no more audit records of eu-1 are gathered")));
  EXPECT_TRUE(keep(folders, RecordKind::metrics, R"({"step":7,"loss":1})", 10))
      << "they do not take the room of metrics";
}

TEST_F(GatheredFoldersTest, LinesThatAreNoFiguresMakeNoCurve) {
  auto folders = this->folders();
  for (const auto* line : {"3", "[]", R"({"step":-1,"loss":1})", R"({"step":1.5,"loss":1})",
                           R"({"step":"1","loss":1})", R"({"loss":1})", R"({"step":1,"loss":"low"})",
                           R"({"step":1,"loss":{"a":1}})", R"({"step":1,"eval_nats":1,"eval_tokens":0})"})
    EXPECT_TRUE(keep(folders, RecordKind::metrics, line));
  EXPECT_TRUE(event_files_in(folder_ / "eu-1").empty());
  EXPECT_TRUE(keep(folders, RecordKind::metrics, R"({"step":1,"loss":"nan","lr":"-inf"})"));
  auto shown = events::shown_in(folder_ / "eu-1");
  EXPECT_TRUE(std::isnan(shown["train/loss"][1]));
  EXPECT_EQ(shown["train/lr"][1], -std::numeric_limits<float>::infinity());
}

TEST_F(GatheredFoldersTest, NoMemberTakesANameOfTheRunsOwnFiles) {
  auto folders = this->folders();
  for (const auto* name :
       {"coordinator.state", "coordinator.state.partial", "summary.json", "metrics.jsonl", "metrics.jsonl.1",
        "config.yaml", "coordinator", "stores", "wandb", "wandb.json", "launch.log", "../up", ""})
    EXPECT_FALSE(keep(folders, RecordKind::log, "mine now", 10, name)) << name;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_TRUE(keep(folders, RecordKind::log, "a name like it", 10, "coordinator-2"));
}

}  // namespace
}  // namespace isthmus::app
