#pragma once
// Table 4 of Streaming DiLoCo (arXiv 2501.18512): the bandwidth at which five methods reach five levels of
// compute utilisation, for models of 1, 10 and 100 billion parameters, simulated by the same rules as any
// run. docs/plan.md lists what the paper leaves open and what is assumed here.

#include <array>
#include <string_view>
#include <vector>

namespace isthmus::outer_sync::plan {

inline constexpr std::array<double, 5> paper_levels = {0.5, 0.8, 0.9, 0.95, 0.99};

struct PaperRow {
  std::string_view model, method;
  std::array<double, 5> paper{};  ///< Gbit/s for each level, as printed in the paper
  std::array<double, 5> ours{};   ///< Gbit/s simulated here, on the same grid
  std::array<int, 5> apart{};     ///< difference in grid points, ours minus the paper's
};

/// All 75 cells: five methods for each of three models.
[[nodiscard]] std::vector<PaperRow> paper_table();

/// 50 bandwidths from 0.1 to 1000 Gbit/s, evenly spaced on a logarithmic scale.
[[nodiscard]] std::vector<double> paper_grid();

}  // namespace isthmus::outer_sync::plan
