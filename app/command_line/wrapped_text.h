#pragma once
// Text for a terminal of 80 columns: help, and the explanation of a key.

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus::app {

inline constexpr std::size_t terminal_columns = 80;

/// The text in lines of at most 80 columns, each begun at column `margin`, with the label to the left of the
/// first one. A label that reaches into the text has a line of its own. `at_break` ends each line but the
/// last.
[[nodiscard]] std::string wrapped(std::string_view label, std::string_view text, std::size_t margin,
                                  std::string_view at_break = "");

}  // namespace isthmus::app
