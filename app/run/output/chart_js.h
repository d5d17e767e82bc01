#pragma once
// Chart.js, which draws the charts of reports and of the dashboard; embedded in the binary
// (cmake/Embed.cmake).

#include <string_view>

namespace isthmus::app::assets {

[[nodiscard]] std::string_view chart_js();  ///< Chart.js 3 with its licence, MIT

}  // namespace isthmus::app::assets
