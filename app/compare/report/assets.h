#pragma once
// Files that are embedded in the binary (cmake/Embed.cmake).

#include <string_view>

namespace isthmus::app::assets {

[[nodiscard]] std::string_view page_css();
[[nodiscard]] std::string_view page_js();

}  // namespace isthmus::app::assets
