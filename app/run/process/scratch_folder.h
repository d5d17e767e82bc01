#pragma once
// A folder for the files of one command.

#include <filesystem>
#include <string>

namespace isthmus::app {

/// In the system's temporary folder; the destructor removes it.
class ScratchFolder {
 public:
  /// Throws Error(data) naming the folder. `verb`: part of its name.
  explicit ScratchFolder(const std::string& verb);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace isthmus::app
