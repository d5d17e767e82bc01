// Compares intervals with values worked out by hand and with tables of Student's t.

#include "compare/statistics/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace isthmus::app {
namespace {

TEST(Statistics, QuantilesAreThoseOfTheTables) {
  for (const auto& [freedom, value] : std::vector<std::pair<double, double>>{{1, 12.7062},
                                                                             {2, 4.3027},
                                                                             {10, 2.2281},
                                                                             {24, 2.0639},
                                                                             {25, 2.0595},
                                                                             {30, 2.0423},
                                                                             {100, 1.9840},
                                                                             {1000, 1.9623}})
    EXPECT_NEAR(t_quantile(freedom), value, 2e-4) << freedom << " degrees of freedom";
  // Welch's degrees of freedom are not whole numbers: 2.5, with R's qt(.975, 2.5).
  EXPECT_NEAR(t_quantile(2.5), 3.5580, 0.1);
  EXPECT_GT(t_quantile(2), t_quantile(2.5));
  EXPECT_LT(t_quantile(3), t_quantile(2.5));
}

TEST(Statistics, OneValueHasNoNoise) {
  const auto one = estimate(std::array{2.0});
  EXPECT_EQ(one.mean, 2);
  EXPECT_FALSE(one.noise);
  EXPECT_FALSE(one.deviation);
}

TEST(Statistics, AnIntervalWorkedOutByHand) {
  // 1, 2, 3: deviation 1, so 4.3027 / sqrt(3).
  const auto three = estimate(std::array{1.0, 2.0, 3.0});
  EXPECT_DOUBLE_EQ(three.mean, 2);
  EXPECT_NEAR(*three.noise, 4.3027 / std::sqrt(3.0), 1e-9);
}

TEST(Statistics, PairsTakeOutWhatSeedsHaveInCommon) {
  // Seeds differ a lot, and the arm is worse by 1 % of the baseline's mean at each seed.
  const std::array baseline = {1.0, 2.0, 3.0}, arm = {1.02, 2.02, 3.02};
  const auto paired = paired_difference(arm, baseline);
  EXPECT_NEAR(paired.relative, 0.01, 1e-12);
  EXPECT_LT(*paired.noise, 1e-9);
  EXPECT_TRUE(paired.resolved());
  const auto apart = unpaired_difference(arm, baseline);
  EXPECT_NEAR(apart.relative, 0.01, 1e-12);
  EXPECT_FALSE(apart.resolved());
  // Welch with equal deviations: 4 degrees of freedom.
  EXPECT_NEAR(*apart.noise, 2.7764 * std::sqrt(2.0 / 3) / 2, 1e-4);
}

TEST(Statistics, OneSeedResolvesNothing) {
  const auto difference = paired_difference(std::array{1.5}, std::array{1.0});
  EXPECT_DOUBLE_EQ(difference.relative, 0.5);
  EXPECT_FALSE(difference.noise);
  EXPECT_FALSE(difference.resolved());
  EXPECT_FALSE(difference.more_seeds);
}

TEST(Statistics, SaysAfterHowManySeedsADifferenceIsResolved) {
  const std::array baseline = {1.0, 1.0, 1.0}, arm = {1.0, 1.01, 1.002};
  const auto difference = paired_difference(arm, baseline);
  ASSERT_FALSE(difference.resolved());
  ASSERT_TRUE(difference.more_seeds);
  const auto all = estimate(std::array{0.0, 0.01, 0.002});
  const auto noise_of = [&](std::size_t seeds) {
    return t_quantile(static_cast<double>(seeds - 1)) * *all.deviation /
           std::sqrt(static_cast<double>(seeds));
  };
  const auto enough = 3 + *difference.more_seeds;
  EXPECT_LT(noise_of(enough), difference.relative);
  EXPECT_GE(noise_of(enough - 1), difference.relative);
}

TEST(Statistics, SaysAfterHowManySeedsABoundIsOutsideTheInterval) {
  const auto difference = paired_difference(std::array{1.001, 1.009, 0.999}, std::array{1.0, 1.0, 1.0});
  EXPECT_NEAR(difference.high() - difference.low(), 2 * *difference.noise, 1e-12);
  EXPECT_EQ(seeds_to_tell(difference, 0.5), 0U);
  EXPECT_EQ(seeds_to_tell(difference, 0), difference.more_seeds);
  EXPECT_GT(seeds_to_tell(difference, difference.high() - 0.001), 0U);
  EXPECT_FALSE(seeds_to_tell(difference, difference.relative));
  EXPECT_FALSE(seeds_to_tell(paired_difference(std::array{1.5}, std::array{1.0}), 0));
}

TEST(Statistics, EqualRunsAreEqual) {
  const std::array both = {1.0, 1.1};
  const auto difference = paired_difference(both, both);
  EXPECT_EQ(difference.relative, 0);
  EXPECT_EQ(difference.noise, 0);
  EXPECT_FALSE(difference.more_seeds);
}

TEST(Statistics, ASingleCurveIsTakenToBeAsNoisyAsTheSeeds) {
  const std::array baseline = {0.9, 1.0, 1.1};
  const auto difference = unpaired_difference(std::array{1.2}, baseline);
  EXPECT_NEAR(difference.relative, 0.2, 1e-12);
  EXPECT_NEAR(*difference.noise, 4.3027 * 0.1 * std::sqrt(1 + 1.0 / 3), 1e-9);
  EXPECT_FALSE(unpaired_difference(std::array{1.2}, std::array{1.0}).noise);
}

}  // namespace
}  // namespace isthmus::app
