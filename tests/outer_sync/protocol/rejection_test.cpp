// Which contributions outer.reject leaves out of a chunk: a function of norms, checked by hand.

#include "isthmus/outer_sync/protocol/rejection.h"

#include <gmock/gmock.h>

#include <limits>

namespace isthmus::outer_sync::protocol {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr double infinite = std::numeric_limits<double>::infinity();

/// Which contributions a factor of 2 keeps: squared norms up to 4 times the median's.
std::vector<bool> left_by_two(const std::vector<double>& squares, std::size_t least = 1) {
  return kept({.factor = 2, .least = least}, squares);
}

TEST(Rejection, WhatIsMoreThanSoManyTimesTheMedianGoes) {
  EXPECT_THAT(left_by_two({1, 1, 4}), Each(true)) << "exactly four times is not more";
  EXPECT_THAT(left_by_two({1, 1, 4.0001}), ElementsAre(true, true, false));
  EXPECT_THAT(left_by_two({100, 1, 2, 3, 50}), ElementsAre(false, true, true, true, false));
  EXPECT_THAT(left_by_two({0.001, 1, 1}), Each(true)) << "small norms must be kept";
}

TEST(Rejection, OffItLeavesNothingOut) {
  EXPECT_THAT(kept({}, std::vector<double>{1, 1, 1e30, infinite}), Each(true));
}

TEST(Rejection, OfTwoNobodyKnowsWhichIsTheOutlier) {
  EXPECT_THAT(left_by_two({1, 1e9}), Each(true));
  EXPECT_THAT(left_by_two({infinite, 1}), Each(true));
  EXPECT_THAT(left_by_two({}), Each(true));
}

TEST(Rejection, OfAnEvenNumberTheLowerMedianCounts) {
  EXPECT_THAT(left_by_two({1, 1, 9, 9}), ElementsAre(true, true, false, false));
  EXPECT_THAT(left_by_two({1, 9, 9, 9}), Each(true));
}

TEST(Rejection, NothingIsNoContributionToCompareWith) {
  EXPECT_THAT(left_by_two({0, 0, 0}), Each(true));
  EXPECT_THAT(left_by_two({0, 0, 5}), Each(true))
      << "a newcomer contributes zeros, which must not make another member an outlier";
  EXPECT_THAT(left_by_two({0, 1, 1, 9}), ElementsAre(true, true, true, false));
}

TEST(Rejection, WhatDoesNotDecodeGoesFirst) {
  EXPECT_THAT(left_by_two({1, infinite, 1}), ElementsAre(true, false, true));
  EXPECT_THAT(left_by_two({infinite, infinite, 1}), ElementsAre(false, false, true))
      << "even if it is the median";
}

TEST(Rejection, TheLeastRemainAndTheLargestGo) {
  EXPECT_THAT(left_by_two({1, 1, 1, 30, 20}, 4), ElementsAre(true, true, true, false, true));
  EXPECT_THAT(left_by_two({1, 1, 1, 20, infinite}, 4), ElementsAre(true, true, true, true, false));
  EXPECT_THAT(left_by_two({1, 1, 1, 30, 20}, 5), Each(true));
  EXPECT_THAT(left_by_two({1, 1, 1, 30, 20}, 9), Each(true)) << "there are fewer than the minimum already";
}

TEST(Rejection, OfEqualOnesTheLaterGoes) {
  EXPECT_THAT(left_by_two({9, 1, 9, 1, 1}, 4), ElementsAre(true, true, false, true, true));
  EXPECT_THAT(left_by_two({infinite, infinite, 1, 1, 1}, 4), ElementsAre(true, false, true, true, true));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
