#pragma once
// Figures of a comparison in words, the same on the terminal, in the page and in the verdicts.

#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::app {

/// "0.3 %" for 0.003: two significant digits.
[[nodiscard]] std::string percent(double part);
/// The same with a sign.
[[nodiscard]] std::string signed_percent(double part);
/// A factor: "112", "4.3", "1.2".
[[nodiscard]] std::string times(double factor);
/// "0.9818"
[[nodiscard]] std::string loss_words(double loss);
/// "1 seed", "3 seeds"
[[nodiscard]] std::string seeds_words(std::size_t count);

/// The verdict on an arm of a report. All other figures of the arm must already be set.
[[nodiscard]] std::string verdict_of(const nlohmann::ordered_json& arm,
                                     const nlohmann::ordered_json& baseline);

}  // namespace isthmus::app
