#include "store/open_ids.h"

#include <string>
#include <system_error>
#include <vector>

#include "ids/bin_folder.h"
#include "ids/id_files.h"
#include "ids/megatron.h"
#include "isthmus/base/error.h"
#include "store/store_format.h"
#include "store/store_reader.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<TokenSource> open_files(const std::vector<fs::path>& files,
                                        std::optional<std::uint32_t> separator) {
  if (files.empty()) return nullptr;
  std::vector<std::unique_ptr<TokenSource>> sources;
  for (const auto& file : files) sources.push_back(open_id_file(file, separator));
  return join_sources(std::move(sources), separator);
}

}  // namespace

std::unique_ptr<TokenSource> open_ids(const fs::path& path, std::optional<std::uint32_t> separator,
                                      const std::function<void(const StoreSpec&)>& check) {
  if (const auto prefix = megatron_prefix(path)) return open_megatron(*prefix);
  if (is_store(path)) {
    auto store = open_store(path);
    check(store->info().spec);
    return store;
  }
  std::error_code none;
  if (fs::is_regular_file(path, none) && path.extension() == ".bin") return open_id_file(path, separator);
  if (!fs::is_directory(path, none)) return nullptr;
  if (fs::exists(path / store::journal_name) && fs::exists(path / store::blocks_name)) {
    data_error(path.string() +
               " is an incomplete chunk store: to complete it, rerun the isthmus data tokenize command that "
               "began it");
  }
  const auto folder = read_bin_folder(path);
  if (folder.train.empty() && !folder.heldout.empty()) {
    data_error(path.string() +
               ": its .bin files are all held out, by their names; expected a file for training " +
               "too, like train.bin");
  }
  return open_files(folder.train, separator);
}

std::unique_ptr<TokenSource> open_heldout_ids(const fs::path& path, std::optional<std::uint32_t> separator) {
  return open_files(read_bin_folder(path).heldout, separator);
}

}  // namespace isthmus::data
