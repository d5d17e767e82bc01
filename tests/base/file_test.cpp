// Files appear completely or not at all, and errors name the file.

#include "isthmus/base/file.h"

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <fstream>
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
      ADD_FAILURE() << "a missing file was opened";
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

TEST(ReplaceFile, ASecretIsItsOwnersFromTheFirstByteOnAndFollowsNoLink) {
  const TemporaryFolder folder;
  const auto path = folder / "key.pem", other = folder / "other";
  std::ofstream(other) << "before";
  std::filesystem::create_symlink(other, path.string() + partial_suffix);
  using std::filesystem::perms;
  const auto umask_before = ::umask(0);
  const auto write = [](const File& out) {
    EXPECT_EQ(std::filesystem::symlink_status(out.path()).permissions(),
              perms::owner_read | perms::owner_write);
    out.write(bytes_of("secret"));
  };
  replace_file(path, write, File::Mode::secret);
  ::umask(umask_before);
  EXPECT_EQ(read_all(path), "secret");
  EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_read | perms::owner_write);
  EXPECT_EQ(read_all(other), "before");
}

TEST(PrivateFolders, AreMadeForTheirOwnerAloneAndLeftAsTheyAre) {
  const TemporaryFolder folder;
  using std::filesystem::perms;
  make_private_folder(folder / "a/b");
  EXPECT_EQ(std::filesystem::status(folder / "a/b").permissions(), perms::owner_all);
  std::filesystem::permissions(folder / "a/b", perms::owner_all | perms::group_read);
  make_private_folder(folder / "a/b");
  EXPECT_EQ(std::filesystem::status(folder / "a/b").permissions(), perms::owner_all | perms::group_read);
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(make_private_folder(folder / "file"), Error);
  EXPECT_THROW(make_private_folder(folder / "file/b"), Error);
}

}  // namespace
}  // namespace isthmus
