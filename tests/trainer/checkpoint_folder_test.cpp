#include "isthmus/trainer/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/trainer/checkpoint.h"
#include "temporary_folder.h"

namespace isthmus::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Steps = std::vector<std::uint64_t>;

const Digest folder_model = hash_of({});

/// A folder with a checkpoint of each of these steps.
struct Folder {
  explicit Folder(const Steps& steps, std::uint64_t replica = 0) {
    const Bytes bytes(300, std::byte{5});
    for (const auto step : steps)
      write_checkpoint(checkpoint_file(folder.path(), step, replica), folder_model, step,
                       std::vector<SectionView>{{"a", bytes}, {"b", bytes}});
  }
  [[nodiscard]] std::filesystem::path file(std::uint64_t step) const {
    return checkpoint_file(folder.path(), step, 0);
  }
  void flip(std::uint64_t step, std::size_t at) const {
    auto text = read_all(file(step));
    text.at(at) = static_cast<char>(text.at(at) ^ 4);
    (void)folder.write(file(step).filename().string(), text);
  }
  Steps sound(std::size_t in_full = 3) {
    refused.clear();
    return sound_checkpoints(folder.path(), 0, folder_model, in_full,
                             [&](const std::string& why) { refused.push_back(why); });
  }
  TemporaryFolder folder;
  std::vector<std::string> refused;
};

TEST(CheckpointSteps, ListsCompleteFilesOfTheReplica) {
  Folder at({300, 100, 20}, 1);
  write_checkpoint(checkpoint_file(at.folder.path(), 400, 11), folder_model, 400, {});
  (void)at.folder.write(checkpoint_file("", 500, 1).string() + ".partial", "cut off");
  (void)at.folder.write("step_x_replica_1.ckpt", "");
  (void)at.folder.write("notes.txt", "");
  EXPECT_THAT(checkpoint_steps(at.folder.path(), 1), ElementsAre(20, 100, 300));
  EXPECT_THAT(checkpoint_steps(at.folder.path(), 11), ElementsAre(400));
  EXPECT_THAT(checkpoint_steps(at.folder / "none", 1), IsEmpty());
}

TEST(CheckpointSteps, TheLatestThatAllHave) {
  using Lists = std::vector<Steps>;
  EXPECT_EQ(latest_common_step(Lists{{1, 2, 3}, {1, 2}, {2, 3}}), 2);
  EXPECT_EQ(latest_common_step(Lists{{5}}), 5);
  EXPECT_EQ(latest_common_step(Lists{{1}, {2}}), std::nullopt);
  EXPECT_EQ(latest_common_step(Lists{{1}, {}}), std::nullopt);
  EXPECT_EQ(latest_common_step(Lists{}), std::nullopt);
}

TEST(Superseded, AreThoseBeforeTheNewestAndBeforeWhatAllHave) {
  const Steps steps = {10, 20, 30, 40, 50};
  EXPECT_THAT(superseded(steps, {.newest = 2, .every = 0}, 50), ElementsAre(10, 20, 30));
  EXPECT_THAT(superseded(steps, {.newest = 2, .every = 20}, 50), ElementsAre(10, 30));
  EXPECT_THAT(superseded(steps, {.newest = 2, .every = 0}, 20), ElementsAre(10));
  EXPECT_THAT(superseded(steps, {.newest = 2, .every = 0}, 0), IsEmpty());
  EXPECT_THAT(superseded(steps, {.newest = 5, .every = 0}, 50), IsEmpty());
  EXPECT_THAT(superseded(steps, {.newest = 0, .every = 0}, 50), IsEmpty()) << "0 keeps all";
  EXPECT_THAT(superseded({}, {.newest = 2, .every = 0}, 50), IsEmpty());
}

/// Replicas that write at different speeds, sometimes fail and learn of each other late: in any order of
/// events, once all replicas have had a common step, they keep one.
TEST(Superseded, LeavesAStepThatAllHave) {
  constexpr std::size_t replicas = 3;
  std::uint64_t drawn = 0;
  int worlds_with_one = 0;
  const auto next = [&](std::uint64_t below) { return random_bits(1, 0, drawn++) % below; };
  for (int world = 0; world < 200; ++world) {
    std::vector<Steps> disks(replicas), said(replicas);
    std::vector<std::uint64_t> due(replicas, 0), heard(replicas, 0);
    bool had_one = false;
    for (int event = 0; event < 200; ++event) {
      const auto m = next(replicas);
      switch (next(4)) {
        case 0:  // writes the next checkpoint or fails
          due[m] += 10;
          if (next(4) > 0) disks[m].push_back(due[m]);
          break;
        case 1:  // sends a heartbeat with the present steps
          said[m] = disks[m];
          break;
        case 2:  // receives the reply to a heartbeat
          heard[m] = std::max(heard[m], latest_common_step(said).value_or(0));
          break;
        default:
          for (const auto step : superseded(disks[m], {.newest = 2, .every = 0}, heard[m]))
            std::erase(disks[m], step);
      }
      const bool has_one = latest_common_step(disks).has_value();
      EXPECT_TRUE(has_one || !had_one) << "world " << world << ", event " << event;
      had_one = had_one || has_one;
    }
    worlds_with_one += had_one ? 1 : 0;
  }
  EXPECT_GT(worlds_with_one, 150) << "in the other worlds no step was written by all replicas";
}

TEST(SoundCheckpoints, DamagedOnesAreNamedAndTheOnesBeforeTaken) {
  Folder at({10, 20, 30, 40});
  EXPECT_THAT(at.sound(), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(at.refused, IsEmpty());
  at.flip(40, 500);
  std::filesystem::resize_file(at.file(20), 400);
  EXPECT_THAT(at.sound(), ElementsAre(10, 30));
  ASSERT_THAT(at.refused, SizeIs(2));
  EXPECT_THAT(at.refused[0], HasSubstr(at.file(40).string() + " cannot be used: the checksum of section"));
  EXPECT_THAT(at.refused[1], HasSubstr(at.file(20).string() + " cannot be used: it ends inside section"));
}

TEST(SoundCheckpoints, OfOlderOnesHeaderAndLengthAreChecked) {
  Folder at({10, 20, 30, 40});
  at.flip(10, 600);
  EXPECT_THAT(at.sound(2), ElementsAre(10, 20, 30, 40))
      << "a check of two leaves older files unread; reading this one would report the damage";
  EXPECT_THAT(at.sound(4), ElementsAre(20, 30, 40));
  at.flip(20, 20);
  EXPECT_THAT(at.sound(2), ElementsAre(10, 30, 40));
}

TEST(SoundCheckpoints, WhereNoneIsSoundTheNewestOnesReasonIsSaid) {
  Folder at({10, 20});
  at.flip(10, 500);
  at.flip(20, 500);
  try {
    (void)at.sound();
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr(at.file(20).string()));
  }
  EXPECT_THAT(sound_checkpoints(at.folder / "none", 0, folder_model, 3, nullptr), IsEmpty());
}

TEST(CheckpointFolder, WhatIsLaterThanTheStepGoneOnFromIsSetAside) {
  Folder at({10, 20, 30});
  EXPECT_EQ(set_aside_after(at.folder.path(), 0, 30), 0);
  EXPECT_EQ(set_aside_after(at.folder.path(), 0, 10), 2);
  EXPECT_THAT(checkpoint_steps(at.folder.path(), 0), ElementsAre(10));
  EXPECT_TRUE(std::filesystem::exists(at.file(30).string() + undone_suffix));
}

TEST(CheckpointFolder, HalfFilesGoAndNothingElse) {
  Folder at({10});
  (void)at.folder.write(at.file(20).filename().string() + ".partial", "cut off");
  (void)at.folder.write("notes.partial", "not a checkpoint");
  prepare_checkpoint_folder(at.folder.path());
  EXPECT_FALSE(std::filesystem::exists(at.file(20).string() + ".partial"));
  EXPECT_TRUE(std::filesystem::exists(at.folder / "notes.partial"));
  EXPECT_TRUE(std::filesystem::exists(at.file(10)));
  prepare_checkpoint_folder(at.folder / "new/folder");
  EXPECT_TRUE(std::filesystem::is_directory(at.folder / "new/folder"));
}

}  // namespace
}  // namespace isthmus::trainer
