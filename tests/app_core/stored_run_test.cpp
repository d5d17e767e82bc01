// A run in an object store: which objects are its checkpoints, and a round log that is copied while it grows.

#include "run/objects/stored_run.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "isthmus/base/error.h"
#include "run/objects/stored_log.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// read_all takes a second for a file of this size.
std::string whole(const fs::path& file) {
  std::string text(fs::file_size(file), ' ');
  std::ifstream(file, std::ios::binary).read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

constexpr auto never = [] { return false; };

std::vector<std::uint64_t> steps_of(const StoredWorker& worker) {
  std::vector<std::uint64_t> steps;
  for (const auto& checkpoint : worker.checkpoints) steps.push_back(checkpoint.step);
  return steps;
}

TEST(StoredRun, ReadsOnlyNamesThatItWrites) {
  const auto key = [](const std::string& worker, std::uint64_t step) {
    return stored_checkpoint_key("run", worker, step);
  };
  EXPECT_EQ(key("eu", 100), "run/eu/checkpoints/step_000000000100_replica_0.ckpt");
  const auto workers = stored_workers({{key("eu", 200), 5},
                                       {key("eu", 100), 5},
                                       {key("eu", 300), 5},
                                       {stored_mark_key(key("eu", 300)), 0},
                                       {key("us", 100), 7},
                                       {"run/us/log/log.header/0-3-00", 3},
                                       {"run/us/checkpoints/step_0000000000100_replica_0.ckpt", 1},
                                       {"run/us/checkpoints/../../step_000000000400_replica_0.ckpt", 1},
                                       {"run/../checkpoints/step_000000000400_replica_0.ckpt", 1},
                                       {"other/eu/checkpoints/step_000000000400_replica_0.ckpt", 1},
                                       {"run", 1}},
                                      "run");
  ASSERT_THAT(workers, SizeIs(2));
  EXPECT_EQ(workers[0].name, "eu");
  EXPECT_THAT(steps_of(workers[0]), ElementsAre(100, 200));
  EXPECT_EQ(workers[1].name, "us");
  EXPECT_THAT(steps_of(workers[1]), ElementsAre(100));
  EXPECT_EQ(workers[1].log_bytes, 3U);
}

TEST(StoredRun, AUrlNamesTheStoreAndTheRun) {
  const auto place = stored_run_place("s3://bucket/a/b/my-run/", {"object_store.endpoint=http://host:9000"});
  EXPECT_EQ(place.run, "my-run");
  EXPECT_EQ(place.options.url, "s3://bucket/a/b");
  EXPECT_EQ(place.options.endpoint, "http://host:9000");
  EXPECT_EQ(stored_run_place("s3://bucket/run", {}).options.url, "s3://bucket");
  EXPECT_EQ(stored_run_place("/mnt/shared/run", {}).options.url, "/mnt/shared");
  for (const auto* url : {"s3://bucket", "s3://bucket/", "run", "/run", "s3://bucket/.."})
    EXPECT_THROW(static_cast<void>(stored_run_place(url, {})), Error) << url;
  EXPECT_THROW(static_cast<void>(stored_run_place("s3://bucket/run", {"run.steps=3"})), Error);
}

/// A log's folder, a store in a second folder, and a copy in a third.
class StoredLogTest : public ::testing::Test {
 protected:
  void write(const std::string& name, std::size_t bytes, char filler) {
    fs::create_directories(log_);
    std::string text(bytes, filler);
    for (std::size_t i = 0; i < bytes; i += 1000) text[i] = static_cast<char>(i / 1000);
    std::ofstream(log_ / name, std::ios::binary) << text;
  }
  void append(const std::string& name, const std::string& text) {
    std::ofstream(log_ / name, std::ios::binary | std::ios::app) << text;
  }
  void copy() { ASSERT_TRUE(stored_->copy(never)); }
  /// As a process that starts later.
  void restart() { stored_ = std::make_unique<StoredLog>(*store_, prefix, log_); }
  void expect_equal_copy() {
    fetch_log(*store_, prefix, folder_ / "copy");
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(log_)) {
      if (entry.path().extension() == ".partial") continue;
      EXPECT_TRUE(whole(folder_ / "copy" / entry.path().filename()) == whole(entry.path())) << entry.path();
      ++files;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "copy"), fs::directory_iterator()),
              static_cast<long>(files));
  }

  static constexpr auto prefix = "run/eu/log/";
  static constexpr auto first = "fragment_0000_round_000000000000.log";
  static constexpr auto second = "fragment_0000_round_000000000007.log";
  TemporaryFolder folder_{memory()};
  fs::path log_ = folder_ / "log";
  std::unique_ptr<ObjectStore> store_ = open_object_store({.url = (folder_ / "store").string()});
  std::unique_ptr<StoredLog> stored_ = std::make_unique<StoredLog>(*store_, prefix, log_);
};

TEST_F(StoredLogTest, GrowsWithTheFiles) {
  copy();  // there is no folder yet
  EXPECT_EQ(fetch_log(*store_, prefix, folder_ / "copy"), 0U);
  write("log.header", 100, 'h');
  write(first, 40'000'000, 'a');
  copy();
  EXPECT_THAT(store_->list(prefix), SizeIs(4)) << "the header, two full segments and the rest";
  expect_equal_copy();
  append(first, "more");
  copy();
  EXPECT_THAT(store_->list(prefix), SizeIs(4)) << "a longer segment replaced the last one";
  expect_equal_copy();
  copy();
  restart();
  copy();
  EXPECT_THAT(store_->list(prefix), SizeIs(4));
}

TEST_F(StoredLogTest, FollowsAFileThatWasTruncated) {
  write(first, 40'000'000, 'a');
  copy();
  fs::resize_file(log_ / first, 20'000'000);
  append(first, "another history");
  restart();
  copy();
  expect_equal_copy();
  fs::resize_file(log_ / first, 1000);
  for (int i = 0; i < 50; ++i) append(first, std::string(999'999, 'b'));
  copy();  // in the same process
  expect_equal_copy();
}

TEST_F(StoredLogTest, FollowsASnapshotThatReplacesAFile) {
  write(first, 1000, 'a');
  copy();
  write(second, 500, 'b');
  fs::remove(log_ / first);
  append("other.partial", "is no file of the log");
  copy();
  EXPECT_THAT(store_->list(prefix), SizeIs(1));
  expect_equal_copy();
}

TEST_F(StoredLogTest, ReportsWhatIsMissingOrDamaged) {
  write(first, 40'000'000, 'a');
  copy();
  const auto segments = store_->list(prefix);
  ASSERT_THAT(segments, SizeIs(3));
  const auto problem = [&] {
    try {
      fetch_log(*store_, prefix, folder_ / "copy");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto whole = store_->get(segments[1].key, 0, segments[1].size).value();
  auto damaged = whole;
  damaged[5] ^= std::byte{1};
  store_->put(segments[1].key, damaged);
  EXPECT_THAT(problem(), HasSubstr(segments[1].key + " is damaged"));
  store_->remove(segments[1].key);
  EXPECT_THAT(problem(), HasSubstr("begins at byte 33554432, but its file ends at 16777216"));
  restart();
  copy();
  EXPECT_EQ(problem(), "");
}

}  // namespace
}  // namespace isthmus::app
