#pragma once

#include <string>
#include <string_view>

namespace isthmus::data {

/// `text`, which is UTF-8, in Unicode's normalization form C.
[[nodiscard]] std::string to_nfc(std::string_view text);

}  // namespace isthmus::data
