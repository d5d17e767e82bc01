#pragma once
// Finds the text files of a corpus, in an order that is the same everywhere, and cuts text into pieces.

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
      name;  ///< relative to the folder that was given, with '/'; empty for a file that was given itself
  std::uint64_t bytes = 0;
};

/// Every regular file below `folder`, in the byte order of their names. Names that start with a dot are left
/// out; links are followed, each real folder once. Calls `bad` for unreadable files and broken links, and
/// continues without them if that returns.
[[nodiscard]] std::vector<TextFile> find_text_files(const std::filesystem::path& folder,
                                                    const std::function<void(const std::string&)>& bad);

inline constexpr std::size_t piece_bytes = std::size_t{1} << 20;
/// Where to cut `text`, which continues: after the last line's end, else before the last character.
[[nodiscard]] std::size_t piece_end(std::string_view text);

}  // namespace isthmus::data
