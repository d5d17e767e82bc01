#pragma once
// Which format the ids at a path have.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "isthmus/data/store.h"
#include "token_source.h"

namespace isthmus::data {

/// The chunk store, Megatron data set, .bin file or folder of nothing but .bin files (in the order of their
/// names) at `path`; nothing if there is none of these. `separator` ends documents where the format does not
/// say. `check` hears what a store says of itself. Throws Error(data) naming the file.
[[nodiscard]] std::unique_ptr<TokenSource> open_ids(const std::filesystem::path& path,
                                                    std::optional<std::uint32_t> separator,
                                                    const std::function<void(const StoreSpec&)>& check);

}  // namespace isthmus::data
