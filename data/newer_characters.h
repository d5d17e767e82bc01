#pragma once
// Characters that are newer than the Unicode of some systems' libraries.

#include <string>
#include <string_view>

namespace isthmus::data {

/// What stands for `text`, which is UTF-8, where characters are told apart by their general category or as
/// Han: the same bytes, but that each character of Unicode 15 to 16 is an older one next to it that is of the
/// same category and as long. PCRE2 knows the Unicode of its release (Debian 12: 14), and ids must not depend
/// on it. Empty if nothing is other.
[[nodiscard]] std::string with_older_characters(std::string_view text);

}  // namespace isthmus::data
