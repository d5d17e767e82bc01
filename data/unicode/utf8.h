#pragma once
// UTF-8 as defined by RFC 3629.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace isthmus::data {

/// Whether a byte continues a character.
inline bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Bytes of the first character of `text`: 1 to 4, or 0 if it is not valid UTF-8 (an overlong form, a
/// surrogate, above U+10FFFF, or cut off).
inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) { return i < text.size() && continues_character(text[i]); };
  if (text.empty()) return 0;
  const auto first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || !continues(1)) return 0;
  if (first < 0xE0) return 2;
  if (!continues(2)) return 0;
  if (first < 0xF0) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0, surrogate = first == 0xED && byte(1) > 0x9F;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = first == 0xF0 && byte(1) < 0x90, too_large = first == 0xF4 && byte(1) > 0x8F;
  return !continues(3) || overlong || too_large ? 0 : 4;
}

/// Bytes at the front of `text` that are ASCII.
inline std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (std::uint64_t eight = 0; i + sizeof eight <= text.size(); i += sizeof eight) {
    std::memcpy(&eight, text.data() + i, sizeof eight);
    if ((eight & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

/// Bytes at the front of `text` that are valid UTF-8.
inline std::size_t utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    i += ascii_prefix(text.substr(i));
    std::size_t length = 0;
    while (i < text.size() && static_cast<unsigned char>(text[i]) >= 0x80 &&
           (length = utf8_length(text.substr(i))) != 0)
      i += length;
    if (i < text.size() && static_cast<unsigned char>(text[i]) >= 0x80) break;
  }
  return i;
}

/// The first character of `text`, which is UTF-8 and not empty.
inline char32_t first_character(std::string_view text) {
  const auto bits = [&](std::size_t i) { return static_cast<char32_t>(text[i]) & 0x3FU; };
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first;
  if (first < 0xE0) return (first & 0x1FU) << 6 | bits(1);
  if (first < 0xF0) return (first & 0x0FU) << 12 | bits(1) << 6 | bits(2);
  return (first & 0x07U) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3);
}

}  // namespace isthmus::data
