#include "run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::app {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& folder, std::chrono::milliseconds patience) {
  make_private_folder(folder);
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw Error(ErrorKind::data, "cannot open the folder " + folder.string() + ": " + std::strerror(errno));
  constexpr std::chrono::milliseconds look_again{20};
  for (;; patience -= look_again) {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    if (patience <= look_again) break;
    std::this_thread::sleep_for(look_again);
  }
  close(descriptor_);
  throw Error(ErrorKind::config, "another process of a run works in " + folder.string() +
                                     ": stop it first, or choose another run.name, run.out or --name");
}

FolderLock::~FolderLock() { close(descriptor_); }

fs::path make_room(const fs::path& path) {
  if (!fs::exists(path)) return {};
  std::optional<FolderLock> nobody_else;
  if (fs::is_directory(path)) nobody_else.emplace(path);
  int n = 1;
  while (fs::exists(path.string() + "." + std::to_string(n))) ++n;
  const auto kept = path.string() + "." + std::to_string(n);
  fs::rename(path, kept);
  fmt::print("what was in {} is now in {}\n", path.string(), kept);
  std::fflush(stdout);
  return kept;
}

}  // namespace isthmus::app
