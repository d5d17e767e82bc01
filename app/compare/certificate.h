#pragma once
// The certificate of a comparison with gates: what each gate's verdict is, and what it was made of.

#include <nlohmann/json.hpp>
#include <string>

#include "compare/report.h"

namespace isthmus::app {

/// The report's part of that name; "passed" is true where all gates have passed. Differences and bounds are
/// parts of the other arm's loss.
[[nodiscard]] nlohmann::ordered_json certificate_json(const Comparison& comparison, const Records& records);

/// "2 of 3 gates passed"
[[nodiscard]] std::string certificate_summary(const nlohmann::ordered_json& certificate);

/// One gate's figures as people read them; "-" for what is not known.
struct GateCells {
  std::string difference, interval, at_most, bits, max_bits, seeds, verdict;
};
[[nodiscard]] GateCells gate_cells(const nlohmann::ordered_json& gate);

}  // namespace isthmus::app
