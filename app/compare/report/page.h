#pragma once
// report.html: the whole report in one file, which loads nothing else.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace isthmus::app {

/// `report` is the output of report_json().
[[nodiscard]] std::string report_page(const nlohmann::ordered_json& report);

/// Escapes untrusted text for HTML, also for attributes.
[[nodiscard]] std::string html_text(std::string_view text);

}  // namespace isthmus::app
