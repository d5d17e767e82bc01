#include "isthmus/base/random.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace isthmus {
namespace {

bool is_bijection(std::uint64_t size, std::uint64_t key) {
  std::vector<bool> hit(size, false);
  for (std::uint64_t i = 0; i < size; ++i) {
    const auto at = permute(i, size, key);
    if (at >= size || hit[at]) return false;
    hit[at] = true;
  }
  return true;
}

TEST(Random, PermuteIsABijectionForEverySmallSize) {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    for (std::uint64_t key = 0; key < 4; ++key) {
      ASSERT_TRUE(is_bijection(size, key)) << "size " << size << ", key " << key;
    }
  }
}

RC_GTEST_PROP(Random, PermuteIsABijection, ()) {
  const auto size = *rc::gen::inRange<std::uint64_t>(1, 20'000);
  RC_ASSERT(is_bijection(size, *rc::gen::arbitrary<std::uint64_t>()));
}

TEST(Random, PermuteStaysInsideTheLargestSizes) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t size :
       {most, most / 2 + 2, (std::uint64_t{1} << 62) + 1, std::uint64_t{1} << 62}) {
    for (const std::uint64_t index : {std::uint64_t{0}, size / 3, size - 1}) {
      EXPECT_LT(permute(index, size, 7), size) << "size " << size << ", index " << index;
    }
    EXPECT_NE(permute(0, size, 7), permute(1, size, 7));
  }
}

// Batches are drawn in this order. A different order means a different training run, so the values are fixed.
TEST(Random, PermuteKeepsItsOrderBetweenVersions) {
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < 10; ++i) order.push_back(permute(i, 10, 42));
  EXPECT_EQ(order, (std::vector<std::uint64_t>{3, 2, 9, 4, 7, 6, 8, 1, 5, 0}))
      << "resumed runs would see different data; keep the old order";
}

TEST(Random, EveryPlaceIsAboutEquallyLikelyToComeFirst) {
  constexpr std::uint64_t size = 10, keys = 20'000;
  std::vector<int> first(size, 0);
  for (std::uint64_t key = 0; key < keys; ++key) ++first[permute(0, size, key)];
  for (const int n : first) EXPECT_NEAR(n, keys / size, 250) << "about six standard deviations from the mean";
}

TEST(Random, UnitIsInTheHalfOpenIntervalAndEven) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const float unit = random_unit(1, 2, i);
    ASSERT_GE(unit, 0.0F);
    ASSERT_LT(unit, 1.0F);
    sum += unit;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(Random, SeedStreamAndCounterAllMatter) {
  EXPECT_NE(random_bits(1, 0, 0), random_bits(0, 1, 0));
  EXPECT_NE(random_bits(0, 1, 0), random_bits(0, 0, 1));
  // SplitMix64 seeded with 0 starts with this value.
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafULL);
}

}  // namespace
}  // namespace isthmus
