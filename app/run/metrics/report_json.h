#pragma once
// A member's final report as JSON, written by the member and read by the coordinator. A report is a struct
// that names its fields once, for both directions:
//
//     template <class Self, class Visit> static void fields(Self& r, Visit visit) { visit("name", r.name);
//     ... }

#include <nlohmann/json.hpp>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::app {

template <class Report>
[[nodiscard]] nlohmann::ordered_json to_json(const Report& report) {
  nlohmann::ordered_json json;
  Report::fields(report, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

/// Throws Error(network) for an invalid report.
template <class Report>
[[nodiscard]] Report report_of(const std::string& text) {
  Report report;
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    Report::fields(report, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::network, std::string("a member's final report cannot be read: ") + error.what());
  }
  return report;
}

[[nodiscard]] inline double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace isthmus::app
