#pragma once
// A figure over the steps of a run in bounded memory, for a chart.

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace isthmus::app {

/// Keeps at most `max_points` of the values that it gets, evenly thinned out over its whole length, and the
/// newest.
class Curve {
 public:
  static constexpr std::size_t max_points = 512;

  /// A step before the last one: the run has returned to a checkpoint, and later points are dropped. Ignores
  /// values that are not finite.
  void add(std::uint64_t step, double value);
  /// An array of [step, value].
  [[nodiscard]] nlohmann::ordered_json json() const;

 private:
  struct Point {
    std::uint64_t step;
    double value;
  };
  std::vector<Point> points_;
  std::optional<Point> newest_;
  std::size_t stride_ = 1, skipped_ = 0;  ///< keeps one value of `stride_`
};

/// The values as an array of [step, value], thinned out to at most `most` and the newest. Leaves out values
/// that are not finite.
[[nodiscard]] nlohmann::ordered_json curve_json(const std::map<std::uint64_t, double>& values,
                                                std::size_t most);

}  // namespace isthmus::app
