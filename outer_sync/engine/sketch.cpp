#include "isthmus/outer_sync/engine/sketch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "isthmus/outer_sync/engine/state_digest.h"

namespace isthmus::outer_sync {

namespace {

constexpr std::size_t block = protocol::sketch_size;
/// The sums, twice: a block that is rotated by r is added to r, r + 1, ... without a wrap.
using Sums = std::array<double, 2 * block>;

/// Adds up to 32 values, each with its own sign, to the sums from `rotation` on.
void add_block(std::span<const float> values, std::uint32_t signs, std::size_t rotation, Sums& sums) {
  std::array<float, block> signed_values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto sign = ((signs >> i) & 1U) << 31U;
    signed_values[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[i]) ^ sign);
  }
  for (std::size_t i = 0; i < block; ++i) sums[rotation + i] += double{signed_values[i]};
}

}  // namespace

protocol::Sketch sketch_of(std::span<const float> values, ChunkId chunk, protocol::Round round) {
  static_assert(block == 32, "a hash has 32 signs and a rotation");
  const auto key = combined(chunk, round);
  Sums sums{};
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    const auto hash = mixed(key + begin, 0);
    add_block(values.subspan(begin, std::min(block, values.size() - begin)), static_cast<std::uint32_t>(hash),
              (hash >> 32U) % block, sums);
  }
  protocol::Sketch sketch;
  for (std::size_t i = 0; i < block; ++i) sketch[i] = static_cast<float>(sums[i] + sums[i + block]);
  return sketch;
}

void add_sketch(protocol::Sketch& sum, const protocol::Sketch& sketch) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sketch[i];
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
