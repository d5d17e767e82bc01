#pragma once
// Levels as tables for instruction sets that look up one of sixteen numbers at once. A level's index takes
// one lookup and one comparison: magnitudes fall into sixteen bins of width 1/16, none of which contains more
// than one border.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "formats.h"

namespace isthmus::quant {

inline constexpr std::size_t level_bins = 16;

/// The last bin includes all larger magnitudes.
constexpr std::size_t bin_of(float magnitude) {
  return std::min(static_cast<std::size_t>(magnitude * level_bins), level_bins - 1);
}

template <class T>
struct LevelTables {
  alignas(64) float levels[level_bins] = {};
  alignas(64) float widths[level_bins] = {};  ///< to the next level; infinite past the last
  // By bin: the index at its beginning, and where in the bin the next index begins.
  alignas(64) std::uint32_t nearest_below[level_bins] = {};  ///< for the nearest level
  alignas(64) float nearest_from[level_bins] = {};
  alignas(64) std::uint32_t level_below[level_bins] = {};  ///< for the level below
  alignas(64) float level_from[level_bins] = {};

  constexpr LevelTables() {
    constexpr float never = std::numeric_limits<float>::infinity();
    for (auto* table : {widths, nearest_from, level_from}) std::fill_n(table, level_bins, never);
    levels[0] = T::levels[0];
    for (std::size_t i = 1; i < level_count<T>; ++i) {
      levels[i] = T::levels[i];
      widths[i - 1] = levels[i] - levels[i - 1];
      put_border((levels[i - 1] + levels[i]) / 2, nearest_below, nearest_from);
      put_border(levels[i], level_below, level_from);
    }
  }

 private:
  static constexpr void put_border(float border, std::uint32_t* below, float* from) {
    from[bin_of(border)] = border;
    for (auto bin = bin_of(border) + 1; bin < level_bins; ++bin) ++below[bin];
  }
};
template <class T>
inline constexpr LevelTables<T> level_tables{};

template <class T>
constexpr bool borders_have_bins_of_their_own() {
  for (std::size_t i = 2; i < level_count<T>; ++i) {
    const float border = (T::levels[i - 1] + T::levels[i]) / 2;
    const float previous = (T::levels[i - 2] + T::levels[i - 1]) / 2;
    if (bin_of(border) == bin_of(previous) || bin_of(T::levels[i]) == bin_of(T::levels[i - 1])) return false;
  }
  return true;
}
/// A few levels are faster to compare than to look up.
template <class T>
inline constexpr bool bins_suffice = level_count<T> > 4 && borders_have_bins_of_their_own<T>();

}  // namespace isthmus::quant
