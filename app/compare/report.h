#pragma once
// What a comparison has come to: report.json, and what people see of it on a terminal and in a spreadsheet.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "compare/run_record.h"

namespace isthmus::app {

struct Records {
  std::vector<std::vector<RunRecord>> of_arm;  ///< finished runs, by the comparison's arms
  std::vector<std::string> missing;            ///< names of runs that are not finished
};

/// Everything that is reported; the other forms are made of it. Losses in nats per token, times in seconds,
/// bytes per replica.
[[nodiscard]] nlohmann::ordered_json report_json(const Comparison& comparison, const Records& records);

/// At most 80 columns wide.
[[nodiscard]] std::string report_table(const nlohmann::ordered_json& report);
/// One line for each run.
[[nodiscard]] std::string runs_csv(const nlohmann::ordered_json& report);
/// One line for each evaluation of each run.
[[nodiscard]] std::string curves_csv(const nlohmann::ordered_json& report);

}  // namespace isthmus::app
