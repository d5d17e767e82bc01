#pragma once
// Table 4 of Streaming DiLoCo (arXiv 2501.18512): the bandwidth at which five methods reach five levels of
// compute utilisation, for models of 1, 10 and 100 billion parameters, simulated by the same rules as any
// run. What the paper leaves open, and how it is taken here, stands in docs/plan.md.

#include <array>
#include <string_view>
#include <vector>

namespace isthmus::outer_sync::plan {

inline constexpr std::array<double, 5> paper_levels = {0.5, 0.8, 0.9, 0.95, 0.99};

struct PaperRow {
  std::string_view model, method;
  std::array<double, 5> paper{};  ///< Gbit/s for each level, as printed there
  std::array<double, 5> ours{};   ///< Gbit/s, on the same grid
  std::array<int, 5> apart{};     ///< points of the grid, ours minus the paper's
};

/// All 75 cells: three models, five methods each.
[[nodiscard]] std::vector<PaperRow> paper_table();

/// 50 bandwidths from 0.1 to 1000 Gbit/s, evenly spaced in their logarithm.
[[nodiscard]] std::vector<double> paper_grid();

}  // namespace isthmus::outer_sync::plan
