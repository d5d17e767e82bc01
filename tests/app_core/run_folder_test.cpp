// The folders to which a run's processes write.

#include "run/process/run_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>

#include "full_disk.h"
#include "participant/replica_folder.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

std::uint64_t clock_now() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

/// An incarnation from a clock that was set back afterwards.
constexpr std::uint64_t in_the_year_2100 = 4'102'444'800'000'000'000;

TEST(Incarnation, IsTheTime) {
  const TemporaryFolder folder;
  const auto before = clock_now();
  const auto first = next_incarnation(folder.path());
  EXPECT_GE(first, before);
  EXPECT_LE(first, clock_now());
  EXPECT_GT(next_incarnation(folder.path()), first);
}

TEST(Incarnation, GrowsAlsoWhereTheClockWasSetBack) {
  const TemporaryFolder folder;
  folder.write("incarnation", std::to_string(in_the_year_2100) + "\n");
  const auto first = next_incarnation(folder.path());
  EXPECT_GT(first, in_the_year_2100);
  EXPECT_GT(next_incarnation(folder.path()), first + 1000)
      << "it must be higher than incarnations after evictions";
}

TEST(Incarnation, DoesNotNeedItsFile) {
  const TemporaryFolder folder;
  const auto before = clock_now();
  EXPECT_GE(next_incarnation(folder / "none"), before);
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
  for (const auto* damaged : {"", "-1", "a word", "99999999999999999999999999"}) {
    folder.write("incarnation", damaged);
    EXPECT_GE(next_incarnation(folder.path()), before) << damaged;
  }
  const FullDisk full(0);
  EXPECT_GE(next_incarnation(folder.path()), before);
}

TEST(Incarnation, GoesOnInTheFolderOfAWorkerThatBeginsAnew) {
  const TemporaryFolder folder;
  Experiment experiment;
  experiment.run.out = folder.path().string();
  folder.write("run/replica-0/checkpoints/any", "");
  folder.write("run/replica-0/incarnation", std::to_string(in_the_year_2100) + "\n");
  const auto anew = replica_folder(experiment, "replica-0", false);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/replica-0.1/checkpoints/any"));
  EXPECT_GT(next_incarnation(anew), in_the_year_2100);
}

}  // namespace
}  // namespace isthmus::app
