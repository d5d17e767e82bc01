// Files that appear complete or not at all, and errors that name them.

#include "isthmus/base/file.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <string>

#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(File, IsReadInPartsAndPastGaps) {
  const TemporaryFolder folder;
  const File file(folder.write("file", "0123456789"), File::Mode::read);
  EXPECT_EQ(file.size(), 10U);
  std::string part(3, ' ');
  EXPECT_TRUE(file.read(std::as_writable_bytes(std::span(part))));
  EXPECT_EQ(part, "012");
  file.skip(4);
  EXPECT_TRUE(file.read(std::as_writable_bytes(std::span(part))));
  EXPECT_EQ(part, "789");
  EXPECT_FALSE(file.read(std::as_writable_bytes(std::span(part))));
  EXPECT_TRUE(file.read_at(1, std::as_writable_bytes(std::span(part))));
  EXPECT_EQ(part, "123");
  EXPECT_FALSE(file.read_at(8, std::as_writable_bytes(std::span(part))));
}

TEST(File, IsAppendedToAndCut) {
  const TemporaryFolder folder;
  const auto path = folder.write("file", "0123");
  {
    const File file(path, File::Mode::append);
    file.write(bytes_of("45"));
    file.truncate(5);
    file.write(bytes_of("x"));
    file.sync();
  }
  EXPECT_EQ(read_all(path), "01234x");
}

TEST(File, NamesWhatCannotBeOpened) {
  const TemporaryFolder folder;
  for (const auto mode : {File::Mode::read, File::Mode::append, File::Mode::folder}) {
    try {
      const File file(folder / "missing", mode);
      ADD_FAILURE() << "it is not there, and was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_EQ(std::string(error.what()),
                "cannot open " + (folder / "missing").string() + ": No such file or directory");
    }
  }
}

TEST(ReplaceFile, KeepsWhatWasThereUntilAllIsWritten) {
  const TemporaryFolder folder;
  const auto path = folder.write("file", "old");
  const auto fail = [](const File& out) {
    out.write(bytes_of("half"));
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(replace_file(path, fail), std::runtime_error);
  EXPECT_EQ(read_all(path), "old");
  replace_file(path, [&](const File& out) {
    out.write(bytes_of("new"));
    EXPECT_EQ(read_all(path), "old");
  });
  EXPECT_EQ(read_all(path), "new");
  EXPECT_FALSE(std::filesystem::exists(path.string() + partial_suffix));
}

TEST(RemoveFile, MayBeGoneAlready) {
  const TemporaryFolder folder;
  const auto path = folder.write("file", "x");
  remove_file(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  remove_file(path);
  folder.write("full/inside", "x");
  EXPECT_THROW(remove_file(folder / "full"), Error);
}

}  // namespace
}  // namespace isthmus
