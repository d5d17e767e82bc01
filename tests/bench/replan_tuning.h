#pragma once
// The replanner's constants by name, for programs that compare values of them.

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/plan/replan.h"

namespace isthmus::outer_sync::plan {

inline constexpr std::array<std::pair<std::string_view, double ReplanTuning::*>, 9> tuning_names = {{
    {"margin_up", &ReplanTuning::margin_up},
    {"margin_down", &ReplanTuning::margin_down},
    {"tolerated", &ReplanTuning::tolerated},
    {"gain_part", &ReplanTuning::gain_part},
    {"min_gain", &ReplanTuning::min_gain},
    {"cheaper", &ReplanTuning::cheaper},
    {"alike", &ReplanTuning::alike},
    {"intervals_between", &ReplanTuning::intervals_between},
    {"confirmed", &ReplanTuning::confirmed},
}};

/// `assignment`: NAME=VALUE, with the name of a member. Throws Error(config).
inline void set_tuning(ReplanTuning& tuning, std::string_view assignment) {
  const auto at = assignment.find('=');
  const auto name = assignment.substr(0, at);
  const auto text = at == std::string_view::npos ? std::string_view() : assignment.substr(at + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0))
    throw Error(ErrorKind::config, fmt::format("{}: expected NAME=VALUE, the value at least 0", assignment));
  if (name == "readings" && value >= 1) {
    tuning.readings = static_cast<std::size_t>(value);
    return;
  }
  for (const auto& [known, member] : tuning_names) {
    if (name != known) continue;
    tuning.*member = value;
    return;
  }
  throw Error(ErrorKind::config, fmt::format("{}: expected the name of a constant", assignment));
}

inline nlohmann::ordered_json json_of_tuning(const ReplanTuning& tuning) {
  nlohmann::ordered_json out;
  for (const auto& [name, member] : tuning_names) out[std::string(name)] = tuning.*member;
  out["readings"] = tuning.readings;
  return out;
}

}  // namespace isthmus::outer_sync::plan
