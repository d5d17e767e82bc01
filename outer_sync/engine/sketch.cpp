#include "isthmus/outer_sync/engine/sketch.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "isthmus/outer_sync/engine/state_digest.h"

namespace isthmus::outer_sync {

protocol::Sketch sketch_of(std::span<const float> values, ChunkId chunk, protocol::Round round) {
  // One hash has the places and signs of ten values: five bits and one bit each.
  constexpr std::size_t values_a_hash = 10, bits = 6;
  static_assert(protocol::sketch_size == 32);
  const auto key = combined(chunk, round);
  std::array<double, protocol::sketch_size> sums{};
  for (std::size_t begin = 0; begin < values.size(); begin += values_a_hash) {
    auto hash = mixed(key + begin, 0);
    for (std::size_t i = begin; i < std::min(begin + values_a_hash, values.size()); ++i, hash >>= bits) {
      const double value = values[i];
      sums[hash & 31U] += (hash & 32U) != 0 ? value : -value;
    }
  }
  protocol::Sketch sketch;
  std::ranges::transform(sums, sketch.begin(), [](double sum) { return static_cast<float>(sum); });
  return sketch;
}

double relative_distance(std::span<const protocol::Sketch> a, std::span<const protocol::Sketch> b) {
  assert(a.size() == b.size());
  double distance = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < protocol::sketch_size; ++j) {
      distance += std::pow(double{a[i][j]} - b[i][j], 2);
      length += std::pow(double{b[i][j]}, 2);
    }
  }
  if (distance == 0) return 0;
  const double relative = std::sqrt(distance / length);
  return std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity();
}

}  // namespace isthmus::outer_sync
