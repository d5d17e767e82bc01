#pragma once
// A folder for the files of one fuzzer.

#include <unistd.h>

#include <filesystem>
#include <string>

#include "fuzz_support.h"

namespace isthmus {

/// A folder of this process, removed at the end of its life; on /dev/shm if possible, since the tested code
/// syncs files.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    auto pattern = ((std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
                    "isthmus_fuzz_XXXXXX")
                       .string();
    quant::require(::mkdtemp(pattern.data()) != nullptr, "cannot make a folder");
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path path;
};

}  // namespace isthmus
