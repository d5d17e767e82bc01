#pragma once
// Folders that runs write to: one writer at a time, and a new run never overwrites an old one.

#include <chrono>
#include <cstdint>
#include <filesystem>

namespace isthmus::app {

/// A killed process holds its folder's lock until the kernel has finished the writes that the process began.
inline constexpr std::chrono::seconds patience_with_the_killed{10};

/// Held while a process uses a folder; released when the process ends, in any way.
class FolderLock {
 public:
  /// Creates the folder if needed. Only its owner can open it, so no other account can hold its lock. Throws
  /// Error(config) if another process still holds it after `patience`, Error(data) if it cannot be created.
  explicit FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// File in a member's folder with the incarnation of its newest process.
inline constexpr const char* incarnation_file = "incarnation";
/// The incarnation of a process that starts in a member's folder: the time, but more than all earlier ones,
/// even if the clock was set back. Without the folder it is the time. Call it with the folder's lock held.
[[nodiscard]] std::uint64_t next_incarnation(const std::filesystem::path& folder);

/// Moves anything at `path` to the first free one of path.1, path.2, ... and reports it. Returns the new
/// path, or empty if nothing was there. Throws as FolderLock does if another process is using the folder.
std::filesystem::path make_room(const std::filesystem::path& path);

}  // namespace isthmus::app
