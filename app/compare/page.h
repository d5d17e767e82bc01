#pragma once
// report.html: the whole report in one file, which loads nothing from anywhere.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace isthmus::app {

/// Of what report_json() made.
[[nodiscard]] std::string report_page(const nlohmann::ordered_json& report);

/// Text of a stranger's as it must stand in HTML, also in an attribute.
[[nodiscard]] std::string html_text(std::string_view text);

}  // namespace isthmus::app
