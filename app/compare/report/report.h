#pragma once
// The result of a comparison: report.json, and its forms for the terminal and for spreadsheets.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/arms/comparison.h"
#include "compare/runs/run_record.h"

namespace isthmus::app {

struct Records {
  std::vector<std::vector<RunRecord>> of_arm;  ///< finished runs of each arm, in the comparison's order
  std::vector<std::string> missing;            ///< names of runs that are not finished
};

/// The whole report; all other forms are made from it. Losses in nats per token, times in seconds, bytes per
/// replica.
[[nodiscard]] nlohmann::ordered_json report_json(const Comparison& comparison, const Records& records);

/// At most 80 columns wide.
[[nodiscard]] std::string terminal_report(const nlohmann::ordered_json& report);
/// One line for each run.
[[nodiscard]] std::string runs_csv(const nlohmann::ordered_json& report);
/// One line for each evaluation of each run.
[[nodiscard]] std::string curves_csv(const nlohmann::ordered_json& report);

}  // namespace isthmus::app
