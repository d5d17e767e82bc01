#pragma once
// Judges the gates of a comparison by the final losses of its runs.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/arms/gates.h"
#include "compare/runs/run_record.h"
#include "compare/statistics/statistics.h"

namespace isthmus::app {

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
inline constexpr std::size_t min_gate_seeds = 3;

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
