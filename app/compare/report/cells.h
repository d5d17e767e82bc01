#pragma once
// The columns of the report's table, for the terminal (report_text.cpp) and for the page (page.cpp).

#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::app {

/// The cells of one arm; "-" if unknown.
struct ArmCells {
  std::string loss, difference, bytes, fewer, bits, utilization, stalls, seconds, gain, correlation, target;
};
/// `arm` as report_json makes it.
[[nodiscard]] ArmCells cells_of(const nlohmann::ordered_json& arm);

}  // namespace isthmus::app
