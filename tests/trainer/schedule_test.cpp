#include "isthmus/trainer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace isthmus::trainer {
namespace {

InnerConfig config_of(const char* schedule, std::int64_t warmup) {
  InnerConfig config;
  config.lr = 0.01;
  config.schedule = schedule;
  config.warmup_steps = warmup;
  config.min_lr_ratio = 0.1;
  config.decay_fraction = 0.25;
  return config;
}

TEST(CosPi, IsTheCosineToTheDocumentedError) {
  const long double pi = 3.141592653589793238462643383279502884L;
  for (int i = 0; i <= 10000; ++i) {
    const double x = i / 10000.0;
    EXPECT_NEAR(cos_pi(x), static_cast<double>(std::cos(pi * static_cast<long double>(x))), 1e-15) << x;
  }
  EXPECT_EQ(cos_pi(0), 1);
  EXPECT_EQ(cos_pi(0.5), 0);
  EXPECT_EQ(cos_pi(1), -1);
}

TEST(LearningRate, RisesLinearlyInWarmUp) {
  for (const auto* schedule : {"cosine", "constant", "wsd"}) {
    const auto config = config_of(schedule, 10);
    EXPECT_DOUBLE_EQ(learning_rate(config, 1, 100), 0.001);
    EXPECT_DOUBLE_EQ(learning_rate(config, 5, 100), 0.005);
    EXPECT_DOUBLE_EQ(learning_rate(config, 10, 100), 0.01);
  }
}

TEST(LearningRate, CosineFallsToItsLeastAtTheLastStep) {
  const auto config = config_of("cosine", 10);
  EXPECT_DOUBLE_EQ(learning_rate(config, 55, 100), 0.01 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(config, 100, 100), 0.001);
  EXPECT_EQ(learning_rate(config, 101, 100), learning_rate(config, 100, 100));
  for (std::uint64_t step = 11; step <= 100; ++step) {
    EXPECT_LT(learning_rate(config, step, 100), learning_rate(config, step - 1, 100));
  }
}

TEST(LearningRate, ConstantStays) {
  EXPECT_EQ(learning_rate(config_of("constant", 10), 11, 100), 0.01);
  EXPECT_EQ(learning_rate(config_of("constant", 0), 1, 100), 0.01);
  EXPECT_EQ(learning_rate(config_of("constant", 10), 1000, 100), 0.01);
}

TEST(LearningRate, WsdStaysAndThenFallsLinearly) {
  const auto config = config_of("wsd", 10);
  EXPECT_EQ(learning_rate(config, 50, 100), 0.01);
  EXPECT_EQ(learning_rate(config, 75, 100), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(config, 80, 100), 0.01 * (1 - 0.9 * 0.2));
  EXPECT_DOUBLE_EQ(learning_rate(config, 100, 100), 0.001);
}

TEST(LearningRate, WarmUpAsLongAsTheRunNeverDecays) {
  for (const auto* schedule : {"cosine", "constant", "wsd"}) {
    EXPECT_EQ(learning_rate(config_of(schedule, 100), 100, 100), 0.01) << schedule;
    EXPECT_EQ(learning_rate(config_of(schedule, 200), 100, 100), 0.005) << schedule;
  }
}

}  // namespace
}  // namespace isthmus::trainer
