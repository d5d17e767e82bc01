#include "run/process/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"

namespace isthmus::app {

namespace fs = std::filesystem;

FolderLock::FolderLock(const fs::path& folder, std::chrono::milliseconds patience) {
  make_private_folder(folder);
  descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw Error(ErrorKind::data, "cannot open the folder " + folder.string() + ": " + std::strerror(errno));
  if (lock_within(descriptor_, patience)) return;
  close(descriptor_);
  throw Error(ErrorKind::config, "another process is using " + folder.string() +
                                     ": stop it first, or choose another run.name, run.out or --name");
}

FolderLock::~FolderLock() { close(descriptor_); }

std::uint64_t next_incarnation(const fs::path& folder) {
  // An evicted member comes back under the next number each time, which no file records, so leave a gap.
  constexpr std::uint64_t apart = 1 << 20;
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  if (!fs::exists(folder)) return now;
  const auto file = folder / incarnation_file;
  const auto text = text_if_there(file);
  std::uint64_t last = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), last);
  const auto next = error == std::errc() ? std::max(now, last + apart) : now;
  try {
    replace_file(file, fmt::format("{}\n", next));
  } catch (const Error& failed) {  // a full disk must not keep it out of the run
    say_error(fmt::format("{}; a restart after the clock was set back may be refused", failed.what()));
  }
  return next;
}

fs::path make_room(const fs::path& path) {
  if (!fs::exists(path)) return {};
  std::optional<FolderLock> nobody_else;
  if (fs::is_directory(path)) nobody_else.emplace(path);
  int n = 1;
  while (fs::exists(path.string() + "." + std::to_string(n))) ++n;
  const auto kept = path.string() + "." + std::to_string(n);
  fs::rename(path, kept);
  say_line(fmt::format("moved the old contents of {} to {}", path.string(), kept));
  return kept;
}

}  // namespace isthmus::app
