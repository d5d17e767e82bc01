#include "model/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* note_name = "isthmus.json";

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    names.insert(entry.path().filename().string());
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

/// Afterwards `fresh` holds what was in the folder, or does not exist.
void exchange_folders(const fs::path& fresh, const fs::path& folder) {
  if (!fs::exists(folder)) return rename_to(fresh, folder);
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_to("replace", folder);
  // This file system cannot exchange: for a moment there is no folder.
  auto old = fresh;
  old += ".old";
  rename_to(folder, old);
  rename_to(fresh, folder);
  rename_to(old, fresh);
}

}  // namespace

ModelFolder::ModelFolder(const fs::path& folder, bool may_replace)
    : folder_(fs::weakly_canonical(fs::absolute(folder))) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  fresh_ = folder_.parent_path() / fmt::format(".{}.isthmus-partial", folder_.filename().string());
  if (fs::exists(folder_) && !fs::is_directory(folder_))
    config_error(fmt::format("--to is {}, which is a file; expected a folder", folder_.string()));
  if (!may_replace && !names_in(folder_).empty())
    config_error(fmt::format(
        "--to is {}, which has files already; expected a new or empty folder, or --replace to replace the "
        "model of an earlier export",
        folder_.string()));
  refuse_files_of_others();
}

void ModelFolder::refuse_files_of_others() const {
  const auto own = own_names(folder_);
  for (const auto& name : names_in(folder_)) {
    if (!own.contains(name))
      config_error(fmt::format(
          "--to is {}, which holds {}; expected a new or empty folder, or a folder that `isthmus export` or "
          "`isthmus observe --to` has written, with nothing added: it is replaced as a whole",
          folder_.string(), name));
  }
}

void ModelFolder::replace(const std::function<void(const fs::path&)>& write, nlohmann::ordered_json note) {
  try {
    fs::remove_all(fresh_);  // what a killed process has left
    fs::create_directories(fresh_);
    write(fresh_);
    note["files"] = names_in(fresh_);
    replace_file(fresh_ / note_name, note.dump(2) + "\n");
    refuse_files_of_others();
    exchange_folders(fresh_, folder_);
    fs::remove_all(fresh_);
  } catch (const fs::filesystem_error& error) {
    data_error(fmt::format("cannot write {}: {}", folder_.string(), error.code().message()));
  }
}

}  // namespace isthmus::app
