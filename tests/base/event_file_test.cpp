// TensorBoard's event files, parsed by an independent reader.

#include "isthmus/base/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "event_reader.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using events::fields_of;
using events::records_of;
using events::shown_in;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// The only file in a folder.
std::filesystem::path file_in(const TemporaryFolder& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U);
  return files.at(0);
}

TEST(EventFile, HoldsScalarsByStep) {
  const TemporaryFolder folder;
  EventFile out(folder.path());
  out.write(300, {{"train/loss", 2.5}, {"train/lr", 1e-3}});
  out.write(301, {{"eval/loss", -1}});
  const auto file = file_in(folder);  // read while it is open, as during a run
  EXPECT_THAT(file.filename().string(), HasSubstr("tfevents"));
  const auto records = records_of(read_all(file));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(fields_of(records[0]).texts.at(3).at(0), "brain.Event:2");

  const auto event = fields_of(records[1]);
  EXPECT_EQ(event.numbers.at(2).at(0), 300U);
  EXPECT_GT(std::bit_cast<double>(event.numbers.at(1).at(0)), 1.6e9) << "seconds since 1970";
  const auto values = fields_of(event.texts.at(5).at(0)).texts.at(1);
  ASSERT_EQ(values.size(), 2U);
  const auto loss = fields_of(values[0]), lr = fields_of(values[1]);
  EXPECT_EQ(loss.texts.at(1).at(0), "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(loss.numbers.at(2).at(0))), 2.5F);
  EXPECT_EQ(lr.texts.at(1).at(0), "train/lr");
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(lr.numbers.at(2).at(0))), 1e-3F);
  EXPECT_EQ(fields_of(records[2]).numbers.at(2).at(0), 301U);
}

TEST(EventFile, AfterARestartTheValuesOfLaterStepsAreDropped) {
  const TemporaryFolder folder;
  EventFile out(folder.path());
  for (const std::uint64_t step : {1, 2, 3})
    out.write(step, {{"train/loss", 4.0 - static_cast<double>(step)}});
  out.restart(2);
  out.write(2, {{"train/loss", 7}});
  EXPECT_THAT(shown_in(folder.path()).at("train/loss"), ElementsAre(Pair(1, 3.0F), Pair(2, 7.0F)));
}

TEST(EventFile, ALaterFileHasALaterName) {
  const TemporaryFolder folder;
  folder.write("events.out.tfevents.5000000000.1", "");  // by a clock that was wrong
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  auto files = event_files_in(folder.path());
  std::ranges::sort(files);
  ASSERT_EQ(files.size(), 3U);
  EXPECT_THAT(files.at(1).filename().string(), HasSubstr("tfevents.5000000001."));
  EXPECT_THAT(files.at(2).filename().string(), HasSubstr("tfevents.5000000002."));
}

TEST(EventFile, FilesSetAsideAreNotShown) {
  const TemporaryFolder folder;
  EventFile(folder.path()).write(1, {{"train/loss", 2}});
  EXPECT_EQ(set_event_files_aside(folder.path()), 1U);
  EXPECT_TRUE(event_files_in(folder.path()).empty());
  EXPECT_THAT(file_in(folder).filename().string(), ::testing::Not(HasSubstr("tfevents")));
}

TEST(EventFile, AFolderThatIsNoneIsNamed) {
  const TemporaryFolder folder;
  try {
    EventFile{folder / "none"};
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), HasSubstr("none/events.out.tfevents."));
  }
}

}  // namespace
}  // namespace isthmus
