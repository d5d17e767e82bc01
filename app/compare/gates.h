#pragma once
// Gates of a comparison: how far an arm's final loss may be above another arm's, and how much the arm may
// send.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/statistics.h"
#include "isthmus/base/config.h"

namespace isthmus::app {

struct Comparison;
struct RunRecord;

/// One entry of `gates`.
struct Gate {
  std::string name;
  std::size_t arm = 0, against = 0;  ///< indices of arms
  double at_most = 0;                ///< fraction of the other arm's loss by which the arm may be worse
  std::optional<double> bits;        ///< maximum payload bits per parameter and step
};

/// Reads the entries of the section `gates`. `comparison` must already have its arms and its baseline. Throws
/// Error(config) with place, value and what was expected.
[[nodiscard]] std::vector<Gate> read_gates(std::vector<config::Source::Entry> section,
                                           const Comparison& comparison);

/// Throws Error(config) if there are gates and the runs cannot be judged: an arm has several configs, or the
/// two arms of a gate are trained on different numbers of tokens.
void check_gates(const Comparison& comparison);

/// Figures of the two arms of a gate, from their finished runs.
struct GateFigures {
  std::vector<std::int64_t> seeds;  ///< for which both arms have a final loss
  std::vector<std::string> ended;   ///< runs of the arm that diverged or were stopped, in words
  std::optional<Difference> difference;
  std::optional<double> bits;  ///< the highest of the arm's runs
};
[[nodiscard]] GateFigures gate_figures(const std::vector<RunRecord>& arm,
                                       const std::vector<RunRecord>& against);

/// With fewer seeds a gate is not judged.
inline constexpr std::size_t fewest_gate_seeds = 3;

struct GateVerdict {
  enum class Outcome { passed, failed, not_shown } outcome = Outcome::not_shown;
  std::optional<std::size_t> more_seeds;  ///< for not_shown; nullopt if 1,000 are not enough
};
/// Passed: the interval's upper end and the bits are within the bounds. Failed: the interval's lower end or
/// the bits are above their bound, or a run of the arm diverged or was stopped as hopeless. Not shown:
/// everything else.
[[nodiscard]] GateVerdict judge(const Gate& gate, const GateFigures& figures);

/// "passed", "failed" or "not shown, needs 2 more seeds".
[[nodiscard]] std::string to_string(const GateVerdict& verdict);

}  // namespace isthmus::app
