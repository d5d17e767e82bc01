#include "ids/bin_folder.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

bool has_word(std::string_view name, std::string_view word) {
  constexpr std::string_view between = "_-.";
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find_first_of(between, begin), name.size());
    if (name.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

/// The entries of a folder in the order of their names, without hidden ones; empty for anything else.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return entries;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) entries.push_back(it->path());
  }
  if (error) data_error(folder.string() + ": " + error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// Throws unless the file can hold only ids.
void check_file(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    data_error(file.string() + " is not a regular file; expected a file of token ids, or another name");
  auto index = file;
  index.replace_extension(".idx");
  if (!fs::exists(index, error)) return;
  auto prefix = file;
  prefix.replace_extension();
  data_error(file.string() + " belongs to a Megatron data set; expected its prefix instead of the folder: " +
             prefix.string() + " as data.path, or as data.val_path if it is held out");
}

}  // namespace

BinFolder read_bin_folder(const fs::path& folder) {
  BinFolder out;
  std::vector<fs::path> others;
  bool only_ids = true;
  for (const auto& entry : entries_of(folder)) {
    const auto name = entry.filename().string();
    std::error_code error;
    if (entry.extension() != ".bin") {
      only_ids = false;
    } else if (has_word(name, "val")) {
      out.heldout.push_back(entry);
    } else if (has_word(name, "train")) {
      out.train.push_back(entry);
    } else if (fs::is_regular_file(entry, error)) {
      others.push_back(entry);
    } else {
      only_ids = false;
    }
  }
  const bool is_named = !out.train.empty() || !out.heldout.empty();
  if (!is_named && !only_ids) return {};
  if (out.train.empty()) {
    out.train = std::move(others);
  } else {
    for (const auto& other : others) out.ignored.push_back(other.filename().string());
  }
  for (const auto* files : {&out.train, &out.heldout}) {
    for (const auto& file : *files) check_file(file);
  }
  return out;
}

}  // namespace isthmus::data
