#pragma once
// Walks through a folder and all folders below it.

#include <filesystem>
#include <functional>
#include <system_error>

namespace isthmus {

/// Calls `visit` for each entry below the folder, a folder after its contents. Does not follow links to
/// folders, and skips folders that are removed meanwhile. Returns the error of the first folder that cannot
/// be read.
[[nodiscard]] std::error_code walk_below(
    const std::filesystem::path& folder,
    const std::function<void(const std::filesystem::directory_entry&)>& visit);

}  // namespace isthmus
