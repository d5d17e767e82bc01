#include "isthmus/trainer/loss_watch.h"

#include <gtest/gtest.h>

#include "isthmus/base/random.h"

namespace isthmus::trainer {
namespace {

/// A loss that falls from 6 towards 3, with noise.
double loss_at(std::uint64_t step) {
  return 3 + 3 / (1 + static_cast<double>(step) / 50) +
         0.1 * (static_cast<double>(random_unit(1, 2, step)) - 0.5);
}

TEST(LossWatch, AFallingCourseWithNoiseHasNoSpikes) {
  LossWatch watch;
  for (std::uint64_t step = 0; step < 5000; ++step) EXPECT_FALSE(watch.add(loss_at(step))) << step;
}

TEST(LossWatch, ASpikeIsToldOnceWhereItBegins) {
  LossWatch watch;
  for (std::uint64_t step = 0; step < 1000; ++step) static_cast<void>(watch.add(loss_at(step)));
  const auto spike = watch.add(5.0);
  ASSERT_TRUE(spike);
  EXPECT_EQ(spike->loss, 5.0);
  EXPECT_NEAR(spike->usual, 3.15, 0.1);
  EXPECT_GT(spike->deviations, LossWatch::spike_deviations);
  for (int step = 0; step < 5; ++step) EXPECT_FALSE(watch.add(4.8)) << "the same spike continues";
  for (std::uint64_t step = 1000; step < 1000 + LossWatch::calm_steps; ++step)
    EXPECT_FALSE(watch.add(loss_at(step)));
  EXPECT_TRUE(watch.add(4.5)) << "a second spike";
}

TEST(LossWatch, WhatIsUsualIsNotKnownAtTheBegin) {
  LossWatch watch;
  for (std::uint64_t step = 0; step + 1 < LossWatch::first_steps; ++step)
    static_cast<void>(watch.add(loss_at(step)));
  EXPECT_FALSE(watch.add(20));
}

TEST(LossWatch, ACourseWithoutNoiseHasRoomForSome) {
  LossWatch watch;
  for (int step = 0; step < 200; ++step) static_cast<void>(watch.add(2));
  EXPECT_FALSE(watch.add(2.05));
  EXPECT_TRUE(watch.add(2.5));
}

}  // namespace
}  // namespace isthmus::trainer
