#include "run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::app {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& folder, std::chrono::milliseconds patience) {
  make_private_folder(folder);
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw Error(ErrorKind::data, "cannot open the folder " + folder.string() + ": " + std::strerror(errno));
  if (lock_within(descriptor_, patience)) return;
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
