#include "isthmus/trainer/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>

#include "full_disk.h"
#include "isthmus/base/random.h"
#include "isthmus/trainer/checkpoint.h"
#include "temporary_folder.h"

namespace isthmus::trainer {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Steps = std::vector<std::uint64_t>;

const Digest writer_model = hash_of({});

/// Numbers that depend on the step, so that a mixture of two snapshots would be detected.
void fill(Snapshot& snapshot, std::size_t floats) {
  const auto value = static_cast<float>(snapshot.step);
  snapshot.model = writer_model;
  snapshot.replica = {.steps = snapshot.step,
                      .parameters = std::vector<float>(floats, value),
                      .first_moment = std::vector<float>(floats, -value),
                      .second_moment = std::vector<float>(floats, value + 1)};
  snapshot.others["outer"].assign(floats, static_cast<std::byte>(snapshot.step));
}

bool is_of(const Checkpoint& checkpoint, std::uint64_t step) {
  const auto& bytes = checkpoint.section("outer");
  return checkpoint.step == step &&
         std::ranges::all_of(bytes, [&](auto byte) { return byte == static_cast<std::byte>(step); });
}

/// A writer with its messages and folder.
struct Writing {
  explicit Writing(KeepRule keep = {.newest = 2, .every = 0}, Steps steps = {})
      : writer({.folder = folder / "checkpoints",
                .keep = keep,
                .say = [this](const std::string& text) { say(text); },
                .retry_after = 5ms},
               std::move(steps), trace) {}
  void say(const std::string& text) {
    const std::lock_guard lock(mutex);
    said.push_back(text);
  }
  std::vector<std::string> all_said() {
    const std::lock_guard lock(mutex);
    return said;
  }
  void write(std::uint64_t step, std::size_t floats = 1000) {
    fill(writer.begin(step), floats);
    writer.write();
  }
  [[nodiscard]] Steps on_disk() const { return checkpoint_steps(folder / "checkpoints", 0); }
  [[nodiscard]] std::filesystem::path file(std::uint64_t step) const {
    return checkpoint_file(folder / "checkpoints", step, 0);
  }
  TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::string> said;
  Trace trace;
  CheckpointWriter writer;  // last, since it calls say() until its end
};

TEST(CheckpointWriter, WritesWhatItWasGiven) {
  Writing run;
  EXPECT_TRUE(run.writer.finish()) << "nothing to write yet";
  run.write(7);
  ASSERT_TRUE(run.writer.finish());
  const auto checkpoint = read_checkpoint(run.file(7), writer_model);
  EXPECT_TRUE(is_of(checkpoint, 7));
  EXPECT_EQ(checkpoint.section("first_moment").size(), 4000);
  EXPECT_THAT(run.writer.steps(), ElementsAre(7));
  EXPECT_THAT(run.all_said(), IsEmpty());
}

TEST(CheckpointWriter, WhateverIsHandedOverIsWritten) {
  Writing run({.newest = 0, .every = 0});
  for (std::uint64_t step = 1; step <= 20; ++step) run.write(step, 100'000);  // faster than any disk
  ASSERT_TRUE(run.writer.finish());
  ASSERT_THAT(run.on_disk(), SizeIs(20));
  for (const auto step : run.on_disk())
    EXPECT_TRUE(is_of(read_checkpoint(run.file(step), writer_model), step));
  for (const auto& line : run.all_said()) EXPECT_THAT(line, HasSubstr("is still being written"));
}

TEST(CheckpointWriter, AWriteUnderWayIsEndedWithIt) {
  TemporaryFolder folder;
  {
    Trace trace;
    CheckpointWriter writer({.folder = folder.path(), .keep = {}, .say = [](const std::string&) {}}, {},
                            trace);
    fill(writer.begin(3), 1'000'000);
    writer.write();
  }
  EXPECT_TRUE(is_of(read_checkpoint(checkpoint_file(folder.path(), 3, 0), writer_model), 3));
}

TEST(CheckpointWriter, TheSnapshotsMemoryIsUsedAgain) {
  Writing run;
  run.write(1);
  auto& snapshot = run.writer.begin(2);
  const auto* before = snapshot.replica.parameters.data();
  EXPECT_THAT(snapshot.replica.parameters, SizeIs(1000));
  snapshot.replica.steps = 2;
  run.writer.write();
  EXPECT_EQ(run.writer.begin(3).replica.parameters.data(), before);
}

TEST(CheckpointWriter, OlderOnesGoWhenAllHaveANewerOne) {
  Writing run({.newest = 2, .every = 40}, {});
  for (std::uint64_t step = 10; step <= 60; step += 10) run.write(step);
  ASSERT_TRUE(run.writer.finish());
  EXPECT_THAT(run.on_disk(), SizeIs(6)) << "others may have none of them";
  run.writer.all_have(30);
  run.write(70);
  ASSERT_TRUE(run.writer.finish());
  run.writer.all_have(70);
  while (run.on_disk().size() > 3) std::this_thread::sleep_for(1ms);
  EXPECT_THAT(run.on_disk(), ElementsAre(40, 60, 70));
  while (run.writer.steps().size() > 3) std::this_thread::sleep_for(1ms);
  EXPECT_THAT(run.writer.steps(), ElementsAre(40, 60, 70));
}

TEST(CheckpointWriter, AFullDiskIsSaidOnceLeavesNothingAndIsTriedAgain) {
  Writing run;
  run.write(10);
  ASSERT_TRUE(run.writer.finish());
  {
    const FullDisk full(8000);
    run.write(20);
    EXPECT_FALSE(run.writer.finish());
    EXPECT_FALSE(run.writer.finish()) << "three attempts have failed by now";
    EXPECT_THAT(run.on_disk(), ElementsAre(10));
    EXPECT_FALSE(std::filesystem::exists(run.file(20).string() + ".partial"));
    EXPECT_THAT(run.writer.steps(), ElementsAre(10));
    const auto said = run.all_said();
    ASSERT_THAT(said, SizeIs(1));
    EXPECT_THAT(said[0], AllOf(HasSubstr("NO CHECKPOINT of step 20: cannot write " + run.file(20).string()),
                               HasSubstr("File too large"), HasSubstr("the newest on disk is of step 10")));
  }
  // The disk has room again: the writer retries by itself.
  while (run.on_disk().size() < 2) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(run.writer.finish());
  EXPECT_TRUE(is_of(read_checkpoint(run.file(20), writer_model), 20));
  EXPECT_THAT(run.all_said().back(), HasSubstr("the checkpoint of step 20 is written now"));
}

TEST(CheckpointWriter, WhatCouldNotBeWrittenGivesWayToTheNext) {
  Writing run;
  {
    const FullDisk full(8000);
    run.write(10);
    EXPECT_FALSE(run.writer.finish());
    fill(run.writer.begin(20), 1000);
  }
  run.writer.write();
  ASSERT_TRUE(run.writer.finish());
  EXPECT_THAT(run.on_disk(), ElementsAre(20));
  EXPECT_THAT(run.all_said().back(), HasSubstr("the checkpoint of step 10 is given up"));
}

TEST(CheckpointWriter, AFolderThatCannotBeMadeIsAWriteThatFails) {
  TemporaryFolder folder;
  (void)folder.write("file", "");
  std::promise<std::string> said;
  Trace trace;
  CheckpointWriter writer({.folder = folder / "file/checkpoints",
                           .keep = {},
                           .say = [&](const std::string& text) { said.set_value(text); },
                           .retry_after = 1h},
                          {}, trace);
  fill(writer.begin(1), 10);
  writer.write();
  EXPECT_THAT(said.get_future().get(), HasSubstr("NO CHECKPOINT of step 1"));
  EXPECT_FALSE(writer.finish());
}

// ---- kills at any moment ----

/// Writes checkpoints until it is killed.
[[noreturn]] void write_for_ever(const std::filesystem::path& folder) {
  Trace trace;
  auto steps = checkpoint_steps(folder, 0);
  auto step = steps.empty() ? 0 : steps.back();
  CheckpointWriter writer(
      {.folder = folder, .keep = {.newest = 2, .every = 0}, .say = [](const std::string&) {}}, steps, trace);
  writer.all_have(step);
  while (true) {
    fill(writer.begin(++step), 40'000);
    writer.write();
    const auto complete = writer.steps();
    writer.all_have(complete.empty() ? 0 : complete.back());
  }
}

bool has_partial(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".partial") return true;
  }
  return false;
}

TEST(CheckpointWriter, KilledAtAnyMomentItLeavesOneThatCanBeGoneOnWith) {
  constexpr std::uint64_t kills = 50;  // more with --gtest_repeat
  constexpr std::uint64_t longest_us = 80'000;
  TemporaryFolder folder;
  std::uint64_t inside = 0, newest = 0;
  for (std::uint64_t i = 0; i < kills; ++i) {
    const auto child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_for_ever(folder.path());
    while (newest == 0 && checkpoint_steps(folder.path(), 0).empty()) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::microseconds(random_bits(3, i, 0) % longest_us));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended without the kill";
    inside += has_partial(folder.path()) ? 1 : 0;
    const auto sound = sound_checkpoints(folder.path(), 0, writer_model, kills, [&](const std::string& why) {
      ADD_FAILURE() << "after kill " << i << ": " << why;
    });
    ASSERT_THAT(sound, testing::Not(IsEmpty())) << "after kill " << i;
    ASSERT_GE(sound.back(), newest) << "the newest checkpoint was lost";
    newest = sound.back();
    EXPECT_TRUE(is_of(read_checkpoint(checkpoint_file(folder.path(), newest, 0), writer_model), newest));
  }
  std::cout << inside << " of " << kills << " kills happened during a write, " << newest
            << " checkpoints were written\n";
  EXPECT_GT(inside, kills / 10) << "otherwise the test is useless";
  EXPECT_LE(checkpoint_steps(folder.path(), 0).size(), 4) << "older checkpoints must be deleted";
}

}  // namespace
}  // namespace isthmus::trainer
