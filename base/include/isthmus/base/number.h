#pragma once
// Reads a number from untrusted text.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace isthmus {

/// The number that is the whole text, without a sign or spaces; nullopt if the text is anything else.
[[nodiscard]] inline std::optional<std::uint64_t> whole_number(std::string_view text, int base = 10) {
  std::uint64_t number = 0;
  const auto* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, base);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace isthmus
