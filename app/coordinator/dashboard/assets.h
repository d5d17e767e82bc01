#pragma once
// Parts of the dashboard's page, embedded in the binary (cmake/Embed.cmake).

#include <string_view>

namespace isthmus::app::assets {

[[nodiscard]] std::string_view dashboard_html();  ///< the content of body, without scripts
[[nodiscard]] std::string_view dashboard_css();
[[nodiscard]] std::string_view dashboard_js();

}  // namespace isthmus::app::assets
