#pragma once
// Folders that runs write to: one writer at a time, and a new run never writes over an old one.

#include <chrono>
#include <filesystem>

namespace isthmus::app {

/// One that was killed holds its folder until the system has written what it had begun to write.
inline constexpr std::chrono::seconds patience_with_the_killed{10};

/// Held for as long as a process works in a folder; gone with the process, however it ends.
class FolderLock {
 public:
  /// Makes the folder if need be, for its owner alone: who cannot open it cannot hold its lock. Throws
  /// Error(config) when another process holds it, and still does after `patience`, Error(data) when it cannot
  /// be made.
  explicit FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Moves what is at `path`, if anything, to the first free one of path.1, path.2, ..., and says so. Throws as
/// FolderLock does when it is a folder that another process works in. Where it is now; empty if nothing was
/// there.
std::filesystem::path make_room(const std::filesystem::path& path);

}  // namespace isthmus::app
