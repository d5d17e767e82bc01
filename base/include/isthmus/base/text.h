#pragma once
// What others say, made fit to be shown.

#include <cstddef>
#include <string>

namespace isthmus {

/// One line that does nothing to a terminal: control characters but tabs become '?'. One of more than `most`
/// bytes is cut, between characters of UTF-8, and ends in '~'.
[[nodiscard]] std::string printable(std::string text, std::size_t most = std::string::npos);

/// The same of several lines, whose newlines stay.
[[nodiscard]] std::string printable_lines(std::string text);

/// The same for where a byte has to be a column: what is not ASCII becomes '?' too, and tabs.
[[nodiscard]] std::string printable_ascii(std::string text, std::size_t most = std::string::npos);

}  // namespace isthmus
