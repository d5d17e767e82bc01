#include "isthmus/base/append_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "full_disk.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

TEST(AppendFile, GoesOnWhereAFileEnds) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "one\n");
  AppendFile(path).append("two\n");
  EXPECT_EQ(read_all(path), "one\ntwo\n");
  AppendFile(folder / "new").append("first\n");
  EXPECT_EQ(read_all(folder / "new"), "first\n");
  EXPECT_THROW(AppendFile(folder / "none/a"), Error);
}

TEST(AppendFile, ARecordIsThereWholeOrNotAtAll) {
  const TemporaryFolder folder;
  std::vector<std::string> said;
  AppendFile silent(folder / "silent", [&](const std::string& text) { said.push_back(text); });
  AppendFile strict(folder / "strict");
  const std::string half(60, 'x');
  for (auto* file : {&silent, &strict}) file->append(half);
  {
    const FullDisk full(100);
    silent.append(half);
    silent.append(half);
    EXPECT_THROW(strict.append(half), Error);
    ASSERT_EQ(said.size(), 1U) << "several failures in a row must be reported once";
    EXPECT_NE(said[0].find((folder / "silent").string() + ": File too large"), std::string::npos) << said[0];
  }
  for (const auto* name : {"silent", "strict"}) EXPECT_EQ(read_all(folder / name), half);
  for (auto* file : {&silent, &strict}) file->append("y");
  for (const auto* name : {"silent", "strict"}) EXPECT_EQ(read_all(folder / name), half + "y");
  const FullDisk full(61);
  silent.append("z");
  EXPECT_EQ(said.size(), 2U);
}

}  // namespace
}  // namespace isthmus
