#pragma once
// The figures of an arm: one table for report.json, runs.csv, the terminal's table (report_text.cpp) and the
// page's (page.cpp).

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "compare/runs/run_record.h"

namespace isthmus::app {

/// Least width and heading in the terminal's table. The names of the arms get the rest of 79 columns.
struct TerminalColumn {
  std::size_t width = 0;  ///< 0: not shown there
  std::string_view heading;
};

struct Column {
  std::string_view key;      ///< in report.json, of an arm and of its runs, and in runs.csv
  std::string_view heading;  ///< on the page
  TerminalColumn terminal;
  /// The figure of one run; the arm has the mean of its runs. Null: the arm's value is made in report.cpp.
  std::optional<double> (*of_run)(const RunRecord& run, std::optional<double> target_loss);
  /// The text of an arm of report.json; "-" if unknown.
  std::string (*cell)(const nlohmann::ordered_json& arm);
};

/// In the order in which they are shown.
[[nodiscard]] std::span<const Column> columns();

}  // namespace isthmus::app
