#pragma once
// Text files that others have written, read within bounds.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace isthmus {

/// All of a file of up to `most` bytes. Throws Error(data) naming a file that cannot be read or is larger.
[[nodiscard]] std::string read_text(const std::filesystem::path& file, std::size_t most = 16 << 20);
/// The same; empty where it cannot be read, as what a process has just removed.
[[nodiscard]] std::string text_if_there(const std::filesystem::path& file, std::size_t most = 16 << 20);

/// Gives every line of a file to `take`, without its end. A line that is longer than 64 KiB is left out.
/// Throws Error(data) when the file cannot be read.
void each_line(const std::filesystem::path& file, const std::function<void(std::string_view)>& take);

}  // namespace isthmus
