#pragma once
// Figures of a comparison in words, the same on the terminal, in the page and in the verdicts.

#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::app {

/// "0.3 %" of .003: two digits that count.
[[nodiscard]] std::string percent(double part);
/// With a sign.
[[nodiscard]] std::string signed_percent(double part);
/// "112", "4.3", "1.2": how many times.
[[nodiscard]] std::string times(double factor);
/// "0.9818"
[[nodiscard]] std::string loss_words(double loss);
/// "1 seed", "3 seeds"
[[nodiscard]] std::string seeds_words(std::size_t count);

/// The cells of one arm in a table; "-" for what is not known.
struct ArmCells {
  std::string loss, difference, bytes, fewer, bits, utilization, stalls, seconds, gain, correlation, target;
};
[[nodiscard]] ArmCells cells_of(const nlohmann::ordered_json& arm);

/// The verdict on an arm of a report whose other figures are there already.
[[nodiscard]] std::string verdict_of(const nlohmann::ordered_json& arm,
                                     const nlohmann::ordered_json& baseline);

}  // namespace isthmus::app
