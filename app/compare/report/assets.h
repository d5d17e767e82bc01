#pragma once
// Files that are embedded in the binary (cmake/Embed.cmake).

#include <string_view>

namespace isthmus::app::assets {

[[nodiscard]] std::string_view chart_js();  ///< Chart.js 3 with its licence, MIT
[[nodiscard]] std::string_view page_css();
[[nodiscard]] std::string_view page_js();

}  // namespace isthmus::app::assets
