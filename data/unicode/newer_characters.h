#pragma once
// Characters that are newer than the Unicode of some systems' libraries.

#include <string>
#include <string_view>

namespace isthmus::data {

/// Replaces each character of Unicode 15 to 16 in `text` (UTF-8) by an older one of the same general category
/// and length, for patterns that match categories or Han. PCRE2 knows the Unicode of its release (Debian 12:
/// 14), and ids must not depend on it. Returns an empty string if nothing was replaced.
[[nodiscard]] std::string with_older_characters(std::string_view text);

}  // namespace isthmus::data
