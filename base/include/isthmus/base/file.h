#pragma once
// Files with errors that name the path, and files that appear completely or not at all.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

namespace isthmus {

/// An open file or folder, closed by the destructor. Every failure is an Error(data) that names the path and
/// the system's reason.
class File {
 public:
  enum class Mode : std::uint8_t {
    read,
    append,   ///< must exist
    replace,  ///< created, or emptied
    secret,   ///< created, accessible to this account alone from its first byte on; must not exist
    folder,   ///< for syncing
  };
  File(const std::filesystem::path& path, Mode mode);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(std::span<const std::byte> bytes) const;
  /// Fills `bytes` from where the last read ended. False if the file ends first.
  [[nodiscard]] bool read(std::span<std::byte> bytes) const;
  /// Fills `bytes` from `offset` on, independently of other reads; from any thread. False if the file ends
  /// first.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Announces random reads to the system, so that it does not read ahead.
  void expect_random_reads() const;
  /// Skips `count` bytes.
  void skip(std::uint64_t count) const;
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Truncates the file; only in mode `append`.
  void truncate(std::uint64_t size) const;
  /// Returns when everything is on disk.
  void sync() const;

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  int number_;
};

/// Calls `write` with a temporary file in the same folder, syncs it, renames it and syncs the folder: `file`
/// has all of the new content or the old one, even if the machine stops in between. Throws Error(data) naming
/// the file and the system's reason, or what `write` throws; then the temporary file is removed. `mode`:
/// replace or secret.
void replace_file(const std::filesystem::path& file, const std::function<void(const File&)>& write,
                  File::Mode mode = File::Mode::replace);
/// The same, with `text` as the whole content.
void replace_file(const std::filesystem::path& file, std::string_view text,
                  File::Mode mode = File::Mode::replace);

/// Creates the folder and its parents if they are missing. If it creates the folder, other accounts can
/// neither list nor enter it. Throws Error(data) naming the folder and the system's reason.
void make_private_folder(const std::filesystem::path& folder);

/// Takes the exclusive lock (flock) of an open file or folder. False if others hold it for all of `patience`,
/// or for another reason, which is then in errno.
[[nodiscard]] bool lock_within(int descriptor, std::chrono::milliseconds patience);

/// False only if the file certainly does not exist: true if the disk or the network file system fails.
[[nodiscard]] bool may_be_there(const std::filesystem::path& file);

/// Throws Error(data) naming the file if it exists and cannot be removed.
void remove_file(const std::filesystem::path& file);

/// Appended to the name by `replace_file` until the file is complete.
inline constexpr const char* partial_suffix = ".partial";

}  // namespace isthmus
