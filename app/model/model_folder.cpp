#include "model/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/base/walk.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* note_name = "isthmus.json";
constexpr const char* partial_name = ".isthmus-partial";

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    names.insert(entry.path().filename().string());
  names.erase(partial_name);
  return names;
}

/// Files that the note in the folder lists, and the note itself; empty without a note.
std::set<std::string> own_names(const fs::path& folder) {
  const auto note = nlohmann::json::parse(text_if_there(folder / note_name), nullptr, false);
  if (!note.is_object() || !note.contains("files") || !note["files"].is_array()) return {};
  std::set<std::string> names = {note_name};
  for (const auto& name : note["files"]) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

[[noreturn]] void fail_to(const char* what, const fs::path& path) {
  data_error(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)));
}

void rename_to(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_to("replace", to);
}

/// Held while a process writes to a temporary folder; released when it ends, in any way.
class WriterLock {
 public:
  WriterLock(const fs::path& fresh, const fs::path& folder)
      : descriptor_(open(fresh.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    struct stat mine {
    }, there{};
    const bool locked = descriptor_ >= 0 && lock_within(descriptor_, {});
    // Another writer may have moved its folder away since it was opened here.
    if (locked && fstat(descriptor_, &mine) == 0 && stat(fresh.c_str(), &there) == 0 &&
        mine.st_ino == there.st_ino)
      return;
    if (descriptor_ >= 0) close(descriptor_);
    config_error(
        fmt::format("another process is writing {}; wait for it, or name another folder", folder.string()));
  }
  ~WriterLock() { close(descriptor_); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  int descriptor_;
};

fs::path old_of(const fs::path& fresh) { return fresh.string() + ".old"; }

/// Afterwards `fresh` holds what was in the folder, or does not exist. False, with nothing done, for a folder
/// that cannot be renamed, such as a mount point.
bool exchange_folders(const fs::path& fresh, const fs::path& folder) {
  if (!fs::exists(folder)) return rename_to(fresh, folder), true;
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EBUSY || errno == EXDEV || errno == EACCES || errno == EPERM) return false;
  if (errno != EINVAL && errno != ENOSYS) fail_to("replace", folder);
  // This file system cannot exchange: for a moment there is no folder.
  const auto old = old_of(fresh);
  rename_to(folder, old);
  if (std::rename(fresh.c_str(), folder.c_str()) != 0) {
    const int reason = errno;
    rename_to(old, folder);
    errno = reason;
    fail_to("replace", folder);
  }
  rename_to(old, fresh);
  return true;
}

/// After a process was killed between the two renames of a file system that cannot exchange.
void mend_killed_exchange(const fs::path& fresh, const fs::path& folder) {
  const auto old = old_of(fresh);
  if (!fs::exists(old)) return;
  if (fs::exists(folder))
    fs::remove_all(old);
  else
    rename_to(old, folder);
}

void move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}

void sync_all(const fs::path& folder) {
  const auto failed = walk_below(folder, [](const fs::directory_entry& entry) {
    if (!entry.is_symlink())
      File(entry.path(), entry.is_directory() ? File::Mode::folder : File::Mode::read).sync();
  });
  if (failed) data_error(folder.string() + " cannot be read: " + failed.message());
  File(folder, File::Mode::folder).sync();
}

/// Moves one file after the other, the note last: only with the note does a later call replace them.
void move_files(const fs::path& fresh, const fs::path& folder, const std::set<std::string>& old_names) {
  remove_file(folder / note_name);
  const auto names = names_in(fresh);
  for (const auto& name : old_names) {
    if (!names.contains(name)) fs::remove_all(folder / name);
  }
  for (const auto& name : names) {
    if (name != note_name) move_file(fresh / name, folder / name);
  }
  move_file(fresh / note_name, folder / note_name);
}

}  // namespace

ModelFolder::ModelFolder(const fs::path& folder, bool may_replace, ModelFolderOptions options)
    : options_(std::move(options)), folder_(fs::weakly_canonical(fs::absolute(folder))) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  if (fs::exists(folder_) && !fs::is_directory(folder_))
    config_error(
        fmt::format("{} is {}, which is a file; expected a folder", options_.folder, folder_.string()));
  if (!may_replace && !names_in(folder_).empty())
    config_error(fmt::format(
        "{} is {}, which has files already; expected a new or empty folder, or {} to replace the model of an "
        "earlier export",
        options_.folder, folder_.string(), options_.replace));
  refuse_files_of_others();
}

void ModelFolder::refuse_files_of_others() const {
  const auto own = own_names(folder_);
  for (const auto& name : names_in(folder_)) {
    if (!own.contains(name))
      config_error(fmt::format(
          "{} is {}, which holds {}; expected a new or empty folder, or a folder that `isthmus export`, "
          "`isthmus observe --out` or save_pretrained has written, with nothing added: it is replaced as a "
          "whole",
          options_.folder, folder_.string(), name));
  }
}

/// Next to the folder or, if this account may make none there, in it.
fs::path ModelFolder::make_fresh() const {
  std::error_code error;
  auto beside = folder_.parent_path() / fmt::format(".{}{}", folder_.filename().string(), partial_name);
  mend_killed_exchange(beside, folder_);
  if (fs::create_directories(beside, error); !error) return beside;
  if (!fs::exists(folder_)) throw fs::filesystem_error("cannot make a folder", beside, error);
  auto inside = folder_ / partial_name;
  fs::create_directories(inside);
  return inside;
}

void ModelFolder::fill_and_swap(const fs::path& fresh, const std::function<void(const fs::path&)>& write,
                                nlohmann::ordered_json note) const {
  for (const auto& left : fs::directory_iterator(fresh)) fs::remove_all(left);  // by a killed process
  write(fresh);
  note["files"] = names_in(fresh);
  replace_file(fresh / note_name, note.dump(2) + "\n");
  sync_all(fresh);
  refuse_files_of_others();
  const bool is_inside = fresh.parent_path() == folder_;
  if (is_inside || !exchange_folders(fresh, folder_)) move_files(fresh, folder_, own_names(folder_));
  File(is_inside ? folder_ : folder_.parent_path(), File::Mode::folder).sync();
}

void ModelFolder::replace(const std::function<void(const fs::path&)>& write, nlohmann::ordered_json note) {
  try {
    const auto fresh = make_fresh();
    const WriterLock lock(fresh, folder_);
    try {
      fill_and_swap(fresh, write, std::move(note));
    } catch (...) {
      std::error_code none;
      fs::remove_all(fresh, none);  // a model may fill the disk
      throw;
    }
    fs::remove_all(fresh);
  } catch (const fs::filesystem_error& error) {
    data_error(fmt::format("cannot write {}: {}", folder_.string(), error.code().message()));
  }
}

}  // namespace isthmus::app
