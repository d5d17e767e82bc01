#pragma once

#include <string>
#include <string_view>

namespace isthmus::data {

/// Converts `text` (UTF-8) to Unicode normalization form C.
[[nodiscard]] std::string to_nfc(std::string_view text);

}  // namespace isthmus::data
