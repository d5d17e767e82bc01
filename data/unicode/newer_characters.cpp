#include "unicode/newer_characters.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

struct Range {
  char32_t first = 0, last = 0;
  char32_t like = 0;  ///< an older character that stands for it
};

// Written by scripts/newer_characters.py.
constexpr Range newer[] = {
#include "unicode/newer_characters.inc"
};

/// By the first byte of a character: whether the list has any that begin with it.
constexpr std::array<bool, 256> first_bytes() {
  std::array<bool, 256> begins{};
  for (const auto& range : newer) {
    for (auto c = range.first; c <= range.last; ++c) {
      const auto byte = c < 0x800 ? 0xC0 | c >> 6 : c < 0x10000 ? 0xE0 | c >> 12 : 0xF0 | c >> 18;
      begins[byte] = true;
    }
  }
  return begins;
}

/// Null if `character` is not in the list.
const Range* find(char32_t character) {
  const auto* range = std::upper_bound(std::begin(newer), std::end(newer), character,
                                       [](char32_t c, const Range& r) { return c < r.first; });
  if (range == std::begin(newer) || (--range)->last < character) return nullptr;
  return range;
}

/// Overwrites a character with another one of the same length.
void put(char32_t character, std::size_t length, char* to) {
  for (auto i = length; i-- > 1; character >>= 6) to[i] = static_cast<char>(0x80 | (character & 0x3F));
  to[0] = static_cast<char>(character | (0xF00U >> length & 0xFFU));
}

}  // namespace

std::string with_older_characters(std::string_view text) {
  static constexpr auto begins = first_bytes();
  std::string out;
  for (std::size_t i = ascii_prefix(text); i < text.size();) {
    if (!begins[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const auto length = utf8_length(text.substr(i));
    if (const auto* range = find(first_character(text.substr(i)))) {
      if (out.empty()) out = text;
      put(range->like, length, out.data() + i);
    }
    i += length;
  }
  return out;
}

}  // namespace isthmus::data
