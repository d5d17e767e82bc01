#pragma once
// Files whose faults have names, and files that appear complete or not at all.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

namespace isthmus {

/// An open file or folder that is closed whatever happens. Every fault is an Error(data) that names the path
/// and the system's reason.
class File {
 public:
  enum class Mode : std::uint8_t {
    read,
    append,   ///< must exist
    replace,  ///< made, or emptied
    secret,   ///< made, for this account alone from its first byte on; must not exist
    folder,   ///< to be synced
  };
  File(const std::filesystem::path& path, Mode mode);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write(std::span<const std::byte> bytes) const;
  /// Fills `bytes` from where the last read ended. False if the file ends before.
  [[nodiscard]] bool read(std::span<std::byte> bytes) const;
  /// Fills `bytes` from `offset` on, whatever was read before; any thread. False if the file ends before.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Tells the system that reads will be anywhere, so that it reads no further than is asked for.
  void expect_random_reads() const;
  /// Reads on `count` bytes further.
  void skip(std::uint64_t count) const;
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Cuts the file off; `append` alone.
  void truncate(std::uint64_t size) const;
  /// Returns when all of it is on disk.
  void sync() const;

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_;
  int number_;
};

/// Calls `write` with a temporary file in the same folder, syncs, renames, syncs the folder: under `file`
/// there is all that was written or what was there before, also when the machine stops in between. Throws
/// Error(data) naming the file and the system's reason, or what `write` throws; nothing is left behind then.
/// `mode`: replace or secret.
void replace_file(const std::filesystem::path& file, const std::function<void(const File&)>& write,
                  File::Mode mode = File::Mode::replace);
/// The same with a text that is all of it.
void replace_file(const std::filesystem::path& file, std::string_view text,
                  File::Mode mode = File::Mode::replace);

/// Makes the folder, and those above it, where they are missing; others may neither list nor enter one that
/// it makes. Throws Error(data) naming the folder and the system's reason.
void make_private_folder(const std::filesystem::path& folder);

/// Takes the exclusive lock (flock) of an open file or folder. False if others hold it for all of `patience`,
/// or for another reason, which is in errno then.
[[nodiscard]] bool lock_within(int descriptor, std::chrono::milliseconds patience);

/// False only where it is known that nothing is there: not when the disk or the network file system fails.
[[nodiscard]] bool may_be_there(const std::filesystem::path& file);

/// Throws Error(data) naming the file when it is there and cannot be removed.
void remove_file(const std::filesystem::path& file);

/// What `replace_file` appends to the name while the file is not complete.
inline constexpr const char* partial_suffix = ".partial";

}  // namespace isthmus
