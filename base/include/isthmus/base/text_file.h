#pragma once
// Reads untrusted text files within limits.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace isthmus {

/// Returns a whole file of up to `most` bytes. Throws Error(data) naming a file that cannot be read or is
/// larger.
[[nodiscard]] std::string read_text(const std::filesystem::path& file, std::size_t most = 16 << 20);
/// The same, but empty if the file cannot be read, for example because a process has just removed it.
[[nodiscard]] std::string text_if_there(const std::filesystem::path& file, std::size_t most = 16 << 20);

/// Passes every line of a file to `take`, without its end. Lines longer than 64 KiB are left out. Throws
/// Error(data) if the file cannot be read.
void each_line(const std::filesystem::path& file, const std::function<void(std::string_view)>& take);

}  // namespace isthmus
