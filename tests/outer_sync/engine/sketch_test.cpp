// Sketches: how well the distance of two estimates that of the vectors, and what they are.

#include "isthmus/outer_sync/engine/sketch.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/reducer.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Sketch;

std::vector<float> values_of(std::uint64_t seed, std::size_t size = 1000) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = random_unit(seed, 0, i) - 0.5F;
  return values;
}

double distance(const std::vector<float>& a, const std::vector<float>& b, std::size_t chunks = 1) {
  std::vector<Sketch> of_a, of_b;
  for (std::size_t k = 0; k < chunks; ++k) {
    of_a.push_back(sketch_of(a, static_cast<ChunkId>(k), 1));
    of_b.push_back(sketch_of(b, static_cast<ChunkId>(k), 1));
  }
  return relative_distance(of_a, of_b);
}

TEST(Sketch, EstimatesTheRelativeDistance) {
  const auto a = values_of(1), other = values_of(2);
  for (const double far : {0.0, 0.01, 0.3, 1.0}) {
    auto b = a;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] += static_cast<float>(far) * other[i];
    EXPECT_NEAR(distance(b, a), far, 0.45 * far) << "one sketch of 32 sums";
    EXPECT_NEAR(distance(b, a, 100), far, 0.05 * far) << "a hundred chunks";
  }
}

TEST(Sketch, IsLinearAndDiffersBetweenRoundsAndChunks) {
  const auto a = values_of(1);
  auto twice = a;
  for (auto& value : twice) value *= 2;
  const auto of_a = sketch_of(a, 3, 7), of_twice = sketch_of(twice, 3, 7);
  for (std::size_t i = 0; i < of_a.size(); ++i) EXPECT_NEAR(of_twice[i], 2 * of_a[i], 1e-5F);
  EXPECT_NE(of_a, sketch_of(a, 3, 8));
  EXPECT_NE(of_a, sketch_of(a, 4, 7));
}

/// Members of one run may have other machines.
TEST(Sketch, ItsValuesAreFixed) {
  std::vector<float> unit(25, 0.0F);
  unit[0] = 1, unit[24] = 4;
  const auto sketch = sketch_of(unit, 2, 5);
  std::vector<std::pair<std::size_t, float>> nonzero;
  for (std::size_t i = 0; i < sketch.size(); ++i) {
    if (sketch[i] != 0) nonzero.emplace_back(i, sketch[i]);
  }
  EXPECT_THAT(nonzero, testing::ElementsAre(testing::Pair(22, -4.0F), testing::Pair(30, -1.0F)));
}

TEST(Sketch, ValuesThatAreNotFiniteAreInfinitelyFar) {
  auto broken = values_of(1);
  broken[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(distance(broken, values_of(1)), std::numeric_limits<double>::infinity());
  EXPECT_EQ(distance(values_of(1), std::vector<float>(1000, 0.0F)), std::numeric_limits<double>::infinity());
  EXPECT_EQ(distance(std::vector<float>(1000, 0.0F), std::vector<float>(1000, 0.0F)), 0);
}

TEST(SketchOfReceived, IsOfZerosIfTheBytesDoNotDecode) {
  const FragmentLayout layout({{0, 16}}, 16);
  const Reducer reducer(layout,
                        {.codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::fp32}});
  const Bytes bytes(16 * sizeof(float), std::byte{0xff});  // NaNs
  const auto received = reducer.received(0, 1, bytes);
  EXPECT_EQ(received.bytes, hash_of(bytes));
  EXPECT_EQ(received.sketch, Sketch());
}

}  // namespace
}  // namespace isthmus::outer_sync
