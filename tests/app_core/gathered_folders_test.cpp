// The lines that the coordinator keeps for its members, and their limits.

#include "coordinator/records/gathered_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "temporary_folder.h"

namespace isthmus::app {
namespace {

using outer_sync::protocol::Gathered;
using outer_sync::protocol::RecordKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  const std::string line = R"({"step":1,"loss":3.25})";
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
  EXPECT_GT(std::filesystem::file_size(folder_ / "eu-1/gathered.log.old"), limit / 5);
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

TEST_F(GatheredFoldersTest, NoMemberTakesANameOfTheRunsOwnFiles) {
  auto folders = this->folders();
  for (const auto* name :
       {"coordinator.state", "coordinator.state.partial", "summary.json", "metrics.jsonl", "metrics.jsonl.1",
        "config.yaml", "coordinator", "stores", "launch.log", "../up", ""})
    EXPECT_FALSE(keep(folders, RecordKind::log, "mine now", 10, name)) << name;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_TRUE(keep(folders, RecordKind::log, "a name like it", 10, "coordinator-2"));
}

}  // namespace
}  // namespace isthmus::app
