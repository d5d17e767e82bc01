// All entries below a folder.

#include "isthmus/base/walk.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "temporary_folder.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> walked(const fs::path& folder) {
  std::vector<std::string> found;
  EXPECT_FALSE(walk_below(folder, [&](const fs::directory_entry& entry) {
    found.push_back(entry.path().lexically_relative(folder).generic_string());
  }));
  return found;
}

TEST(Walk, VisitsFoldersAfterTheirContentsAndFollowsNoLinks) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "a/b");
  folder.write("a/b/file", "x");
  fs::create_directory_symlink(folder / "a", folder / "link");
  const auto found = walked(folder.path());
  EXPECT_THAT(found, testing::UnorderedElementsAre("a/b/file", "a/b", "a", "link"));
  const auto place = [&](const std::string& name) { return std::ranges::find(found, name) - found.begin(); };
  EXPECT_LT(place("a/b/file"), place("a/b"));
  EXPECT_LT(place("a/b"), place("a"));
}

TEST(Walk, ReturnsTheErrorOfAFolderThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto nothing = [](const fs::directory_entry&) {};
  EXPECT_EQ(walk_below(folder / "missing", nothing), std::errc::no_such_file_or_directory);
  folder.write("file", "x");
  EXPECT_EQ(walk_below(folder / "file", nothing), std::errc::not_a_directory);
}

}  // namespace
}  // namespace isthmus
