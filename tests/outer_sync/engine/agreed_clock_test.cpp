// The agreed clock alone: without rounds or parameters.

#include "isthmus/outer_sync/engine/agreed_clock.h"

#include <gtest/gtest.h>

namespace isthmus::outer_sync {
namespace {

const Schedule every_ten(2, 10, 1, 0);

/// One inner step; returns the agreed steps made.
std::uint64_t inner_step(AgreedClock& clock, const Schedule& schedule = every_ten) {
  const auto before = clock.step();
  for (clock.count_inner_step(schedule); clock.has_step();) clock.make_step();
  return clock.step() - before;
}

TEST(AgreedClock, WithoutPaceAnInnerStepIsAnAgreedOne) {
  AgreedClock clock(false);
  clock.set_speeds(1, 8);
  for (int i = 0; i < 25; ++i) {
    EXPECT_EQ(clock.step_after_next(every_ten), clock.step() + 1);
    EXPECT_EQ(inner_step(clock), 1U);
  }
  EXPECT_EQ(clock.inner_steps(every_ten), 10U);
  clock.end_at(25);
  EXPECT_EQ(inner_step(clock), 0U);
}

TEST(AgreedClock, ASlowReplicaCompletesAnIntervalInFewerInnerSteps) {
  AgreedClock clock(true);
  clock.set_speeds(1, 5);
  EXPECT_EQ(clock.step_after_next(every_ten), 5U);
  EXPECT_EQ(inner_step(clock), 5U);
  EXPECT_EQ(clock.inner_steps(every_ten), 2U);
  clock.go_to(13);
  EXPECT_EQ(inner_step(clock), 7U) << "the interval that ends at 20 has one inner step of 7";
}

TEST(AgreedClock, WhatWasCompletedIsMadeWhenTheClockRunsAgain) {
  AgreedClock clock(true);
  clock.set_speeds(1, 5);
  clock.count_inner_step(every_ten);
  clock.make_step();
  clock.set_still(true);
  EXPECT_FALSE(clock.has_step());
  clock.run_on();
  EXPECT_EQ(inner_step(clock), 4U + 5U);
}

TEST(AgreedClock, LocalStepsHaveALimitWhileRoundsDoNotCommit) {
  AgreedClock clock(false);
  clock.set_still(true);
  clock.count_local_step();
  EXPECT_TRUE(clock.may_train(0, every_ten)) << "rounds commit: a view forms";
  clock.waited(false, false);
  EXPECT_FALSE(clock.may_train(0, every_ten));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(clock.may_train(2, every_ten));
    clock.count_local_step();
  }
  EXPECT_FALSE(clock.may_train(2, every_ten));
  clock.run_on();
  EXPECT_TRUE(clock.may_train(2, every_ten));
}

TEST(AgreedClock, WhileAViewFormsAReplicaMakesAnIntervalOfStepsAtMost) {
  AgreedClock clock(false);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(clock.may_train_on(every_ten));
    clock.waited(true, false);
  }
  EXPECT_FALSE(clock.may_train_on(every_ten));
  for (int i = 0; i < 10; ++i) inner_step(clock);
  EXPECT_TRUE(clock.may_train_on(every_ten));
}

TEST(AgreedClock, RefusesMoreStepsThanCanBeOwed) {
  AgreedClock clock(true);
  const auto fits = [&](std::uint64_t owed, std::uint64_t steps) {
    return clock.fits({.pace = {}, .owed = owed}, steps);
  };
  EXPECT_TRUE(fits(0, 0));
  EXPECT_FALSE(fits(1, 0)) << "no step was made yet";
  EXPECT_TRUE(fits(10, 1));
  EXPECT_FALSE(fits(11, 1));
  EXPECT_TRUE(fits(90, 9));
  EXPECT_FALSE(fits(91, 9));
  EXPECT_FALSE(fits(std::numeric_limits<std::uint64_t>::max(), 1'000'000'000));
  EXPECT_FALSE(AgreedClock(false).fits({.pace = {}, .owed = 1}, 100)) << "without pace nothing is owed";
}

}  // namespace
}  // namespace isthmus::outer_sync
