// Sums of products of two vectors: every instruction set of this CPU gives the sums of the definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"
#include "passes_table.h"

namespace isthmus::quant {
namespace {

/// Follows the definition in passes.h, element by element.
Products products_by_definition(const std::vector<float>& x, const std::vector<float>& y) {
  Products total;
  for (std::size_t begin = 0; begin < x.size(); begin += 1024) {
    Products sums[16], tile;
    for (auto i = begin; i < std::min(begin + 1024, x.size()); ++i) {
      auto& sum = sums[i % 16];
      sum.xx += double{x[i]} * double{x[i]};
      sum.xy += double{x[i]} * double{y[i]};
      sum.yy += double{y[i]} * double{y[i]};
    }
    add_products(sums, tile);
    add_products({&tile, 1}, total);
  }
  return total;
}

TEST(Products, AreThoseOfTheDefinition) {
  auto all = all_vector_passes();
  all.push_back(scalar_passes());
  for (const std::size_t n : {0U, 1U, 15U, 16U, 17U, 1023U, 1024U, 1025U, 1040U, 20'001U}) {
    std::vector<float> x(n), y(n);
    for (std::size_t i = 0; i < n; ++i) {
      // Magnitudes differ so much that every order of additions gives another sum.
      const auto scale = static_cast<int>(random_bits(11, 0, i) % 40) - 20;
      x[i] = std::ldexp(random_unit(11, 1, i) - 0.5F, scale);
      y[i] = random_unit(11, 2, i) - 0.5F;
    }
    const auto expected = products_by_definition(x, y);
    for (const auto& passes : all) {
      Products got;
      passes.products(x.data(), y.data(), n, got);
      EXPECT_EQ(got, expected) << passes.target << ", " << n << " elements";
    }
  }
}

TEST(Products, AreAddedToWhatIsThere) {
  Products sums{.xx = 1, .xy = 0, .yy = 0};
  add_products(std::vector<float>{1, 2}, std::vector<float>{3, -4}, sums);
  EXPECT_EQ(sums, (Products{.xx = 6, .xy = -5, .yy = 25}));
}

}  // namespace
}  // namespace isthmus::quant
