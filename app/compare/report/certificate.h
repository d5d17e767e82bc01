#pragma once
// The certificate of a comparison with gates: the verdict on each gate, and the figures and runs behind it.

#include <nlohmann/json.hpp>
#include <string>

#include "compare/report/report.h"

namespace isthmus::app {

/// The report's object "certificate". "passed" is true if all gates have passed. Differences and bounds are
/// fractions of the other arm's loss.
[[nodiscard]] nlohmann::ordered_json certificate_json(const Comparison& comparison, const Records& records);

/// "2 of 3 gates passed"
[[nodiscard]] std::string certificate_summary(const nlohmann::ordered_json& certificate);

/// One gate's figures, formatted; "-" if unknown.
struct GateCells {
  std::string difference, interval, at_most, bits, max_bits, seeds, verdict;
};
[[nodiscard]] GateCells gate_cells(const nlohmann::ordered_json& gate);

}  // namespace isthmus::app
