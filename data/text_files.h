#pragma once
// The text files of a corpus: found in an order that is the same everywhere, read in pieces.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::data {

struct TextFile {
  std::filesystem::path path;
  std::string
      name;  ///< relative to the folder that was named, with '/'; empty for a file that was named itself
  std::uint64_t bytes = 0;
};

/// Every regular file below `folder`, in the byte order of their names. Names that start with a dot are left
/// out; links are followed, each real folder once. Tells `bad` of what cannot be read and of a link that
/// leads nowhere, and goes on without it if that returns.
[[nodiscard]] std::vector<TextFile> find_text_files(const std::filesystem::path& folder,
                                                    const std::function<void(const std::string&)>& bad);

inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;
/// Where to cut `text`, of which more follows: after the last line's end, else before the last character.
[[nodiscard]] std::size_t piece_end(std::string_view text);

}  // namespace isthmus::data
