#pragma once
// Text that fits a terminal of 80 columns: names in tables, and sentences in lines.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::app {

/// The number of columns of a text in UTF-8; every code point takes one.
[[nodiscard]] std::size_t columns_of(std::string_view text);

/// A name in at most `columns`. A longer one loses its middle, because many names differ at their end:
/// "replica-us-east-17" in 12 columns is "repli~ast-17".
[[nodiscard]] std::string short_name(std::string_view name, std::size_t columns);

/// The text in lines of at most `columns`, broken at spaces; further lines begin with `indent` spaces. A
/// longer word, such as a path, stays whole.
[[nodiscard]] std::vector<std::string> wrapped_lines(std::string_view text, std::size_t indent,
                                                     std::size_t columns = 80);

/// The same lines as one text, each with its newline.
[[nodiscard]] std::string in_lines(std::string_view text, std::size_t indent, std::size_t columns = 80);

}  // namespace isthmus::app
