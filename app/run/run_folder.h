#pragma once
// Folders that runs write to: one writer at a time, and a new run never writes over an old one.

#include <chrono>
#include <cstdint>
#include <filesystem>

namespace isthmus::app {

/// A killed process holds its folder's lock until the kernel has finished the writes that it had begun.
inline constexpr std::chrono::seconds patience_with_the_killed{10};

/// Held for as long as a process works in a folder; gone with the process, however it ends.
class FolderLock {
 public:
  /// Makes the folder if need be. Only its owner can open it, so no other account can hold its lock. Throws
  /// Error(config) if another process still holds it after `patience`, Error(data) if it cannot be made.
  explicit FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// In a member's folder: the incarnation of its newest process.
inline constexpr const char* incarnation_file = "incarnation";
/// The incarnation of a process that begins in a member's folder: the time, and in any case more than those
/// before it had, whatever the clock was set to. Without the folder it is the time alone. Called by who has
/// the folder's lock.
[[nodiscard]] std::uint64_t next_incarnation(const std::filesystem::path& folder);

/// Moves what is at `path`, if anything, to the first free one of path.1, path.2, ..., and says so. Throws as
/// FolderLock does when it is a folder that another process works in. Where it is now; empty if nothing was
/// there.
std::filesystem::path make_room(const std::filesystem::path& path);

}  // namespace isthmus::app
