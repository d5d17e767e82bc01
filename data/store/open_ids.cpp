#include "store/open_ids.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "ids/id_files.h"
#include "ids/megatron.h"
#include "isthmus/base/error.h"
#include "store/store_format.h"
#include "store/store_reader.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;

/// The shards of a folder that has only .bin files, in the order of their names. Empty for any other folder.
std::vector<fs::path> shards_of(const fs::path& folder) {
  std::vector<fs::path> shards;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; it != end; it.increment(error)) {
    if (error) data_error(folder.string() + ": " + error.message());
    if (it->path().filename().string().starts_with('.')) continue;
    if (it->path().extension() != ".bin" || !it->is_regular_file(error)) return {};
    shards.push_back(it->path());
  }
  std::sort(shards.begin(), shards.end());
  return shards;
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
  std::vector<std::unique_ptr<TokenSource>> shards;
  for (const auto& shard : shards_of(path)) shards.push_back(open_id_file(shard, separator));
  return shards.empty() ? nullptr : join_sources(std::move(shards), separator);
}

}  // namespace isthmus::data
