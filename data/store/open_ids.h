#pragma once
// Detects the format of the ids at a path.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "ids/token_source.h"
#include "isthmus/data/store.h"

namespace isthmus::data {

/// Opens the chunk store, Megatron data set, .bin file or folder of .bin files at `path`; returns null for
/// anything else. A folder gives its files for training (bin_folder.h), in the order of their names.
/// `separator` ends documents if the format does not define it. Calls `check` with a store's parameters.
/// Throws Error(data) naming the file.
[[nodiscard]] std::unique_ptr<TokenSource> open_ids(const std::filesystem::path& path,
                                                    std::optional<std::uint32_t> separator,
                                                    const std::function<void(const StoreSpec&)>& check);

/// Opens the held-out files of the folder of .bin files at `path`; returns null for anything else. Throws
/// Error(data) naming the file.
[[nodiscard]] std::unique_ptr<TokenSource> open_heldout_ids(const std::filesystem::path& path,
                                                            std::optional<std::uint32_t> separator);

}  // namespace isthmus::data
