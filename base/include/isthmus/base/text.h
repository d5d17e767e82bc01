#pragma once
// Trims text, and makes untrusted text safe to show.

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus {

/// Without these characters at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text, std::string_view characters = " \t\n");

/// One line that is harmless to a terminal: control characters except tabs become '?'. Text of more than
/// `most` bytes is cut, between UTF-8 characters, and ends in '~'.
[[nodiscard]] std::string printable(std::string text, std::size_t most = std::string::npos);

/// The same for several lines; newlines stay.
[[nodiscard]] std::string printable_lines(std::string text);

/// The same where each byte must be a column: non-ASCII characters and tabs become '?' too.
[[nodiscard]] std::string printable_ascii(std::string text, std::size_t most = std::string::npos);

}  // namespace isthmus
