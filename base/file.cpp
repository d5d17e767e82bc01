#include "isthmus/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <thread>

#include "isthmus/base/error.h"

namespace isthmus {
namespace {

int flags_of(File::Mode mode) {
  switch (mode) {
    case File::Mode::append:
      return O_WRONLY | O_APPEND;
    case File::Mode::replace:
      return O_WRONLY | O_CREAT | O_TRUNC;
    case File::Mode::secret:
      return O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    case File::Mode::folder:
      return O_RDONLY | O_DIRECTORY;
    case File::Mode::read:
      break;
  }
  return O_RDONLY;
}

}  // namespace

File::File(const std::filesystem::path& path, Mode mode)
    : path_(path),
      number_(::open(path.c_str(), flags_of(mode) | O_CLOEXEC, mode == Mode::secret ? 0600 : 0644)) {
  if (number_ < 0) fail("open");
}

File::~File() { ::close(number_); }

void File::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto written = ::write(number_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

bool File::read(std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto got = ::read(number_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read");
    if (got == 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool File::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto got = ::pread(number_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read");
    if (got == 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

void File::expect_random_reads() const {
  // Only advice: if the system ignores it, reading is just slower.
  static_cast<void>(::posix_fadvise(number_, 0, 0, POSIX_FADV_RANDOM));
}

void File::skip(std::uint64_t count) const {
  if (::lseek(number_, static_cast<off_t>(count), SEEK_CUR) < 0) fail("read");
}

std::uint64_t File::size() const {
  struct stat status = {};
  if (::fstat(number_, &status) != 0) fail("read");
  return static_cast<std::uint64_t>(status.st_size);
}

void File::truncate(std::uint64_t size) const {
  if (::ftruncate(number_, static_cast<off_t>(size)) != 0) fail("cut");
}

void File::sync() const {
  if (::fsync(number_) != 0) fail("sync");
}

void File::fail(const char* what) const {
  throw Error(ErrorKind::data, "cannot " + std::string(what) + " " + path_.string() + ": " +
                                   std::generic_category().message(errno));
}

void replace_file(const std::filesystem::path& file, const std::function<void(const File&)>& write,
                  File::Mode mode) {
  auto temporary = file;
  temporary += partial_suffix;
  std::error_code error;
  try {
    if (mode == File::Mode::secret) remove_file(temporary);  // left by a process that was killed
    const File out(temporary, mode);
    write(out);
    out.sync();
    std::filesystem::rename(temporary, file, error);
    if (error) throw Error(ErrorKind::data, "cannot rename " + temporary.string() + ": " + error.message());
  } catch (...) {
    std::filesystem::remove(temporary, error);  // a partial file would only fill the disk
    throw;
  }
  // The entry of the new name is data of the folder, which needs its own sync.
  File(file.has_parent_path() ? file.parent_path() : ".", File::Mode::folder).sync();
}

void replace_file(const std::filesystem::path& file, std::string_view text, File::Mode mode) {
  replace_file(
      file, [&](const File& out) { out.write(std::as_bytes(std::span(text))); }, mode);
}

void make_private_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const auto above = folder.parent_path();
  if (!above.empty()) std::filesystem::create_directories(above, error);
  if (!error && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    error = {errno, std::generic_category()};
  if (!error && !std::filesystem::is_directory(folder, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    throw Error(ErrorKind::data, "cannot make the folder " + folder.string() + ": " + error.message());
}

bool lock_within(int descriptor, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds look_again{20};
  for (;; patience -= look_again) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || patience <= look_again) return false;
    std::this_thread::sleep_for(look_again);
  }
}

bool may_be_there(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::exists(file, error) || error;
}

void remove_file(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::remove(file, error);
  if (error) throw Error(ErrorKind::data, "cannot remove " + file.string() + ": " + error.message());
}

}  // namespace isthmus
