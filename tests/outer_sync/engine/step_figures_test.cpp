// Figures of outer steps: checked by hand, and equal on all replicas.

#include "isthmus/outer_sync/engine/step_figures.h"

#include <gmock/gmock.h>

#include <cmath>

#include "replicas.h"

namespace isthmus::outer_sync {
namespace {

quant::OuterStep rule(float momentum, bool nesterov) {
  return {.lr = 0.5F, .momentum = momentum, .nesterov = nesterov};
}

OuterStepFigures figures(double norm, double gain, double correlation) {
  return {.norm = norm, .gain = gain, .correlation = correlation, .has_momentum = true};
}

TEST(StepFigures, ByHand) {
  // v = (4, 3), g = (2, 0): c = 2
  constexpr quant::Products along{.xx = 25, .xy = 8, .yy = 4};
  EXPECT_EQ(figures_of(along, rule(0.5F, true)), figures(2, 2, 1));
  EXPECT_EQ(figures_of(along, rule(0.25F, false)), figures(2, 1.5, 1));
  const quant::Products against{.xx = 25, .xy = -1, .yy = 4};
  EXPECT_EQ(figures_of(against, rule(0.5F, true)), figures(2, 1.4375, -0.25 / 0.875));
  const quant::Products across{.xx = 4, .xy = 0, .yy = 4}, first{.xx = 0, .xy = 0, .yy = 4};
  EXPECT_EQ(figures_of(across, rule(0.5F, true)), figures(2, 1.5, 0));
  EXPECT_EQ(figures_of(first, rule(0.5F, true)), figures(2, 1.5, 0));
}

TEST(StepFigures, TheCorrelationIsThatOfAStationaryMomentum) {
  for (const double mu : {0.5, 0.75}) {
    for (const double rho : {-0.75, -0.25, 0.0, 0.25, 0.75}) {
      double c = 0;
      for (int k = 0; k < 200; ++k) c += std::pow(mu, k) * std::pow(rho, k + 1);
      const quant::Products products{.xx = c * c + 1, .xy = c, .yy = 1};
      EXPECT_NEAR(figures_of(products, rule(static_cast<float>(mu), true))->correlation, rho, 1e-12);
    }
  }
  const quant::Products turned{.xx = 100, .xy = -10, .yy = 1};
  EXPECT_EQ(figures_of(turned, rule(0.5F, true))->correlation, -1) << "beyond the range of rho";
}

TEST(StepFigures, WithoutMomentumItIsTheCosineToTheLastGradient) {
  const auto averaged = figures_of({.xx = 4, .xy = -3, .yy = 9}, rule(0, true));
  EXPECT_EQ(averaged, (OuterStepFigures{.norm = 3, .gain = 1, .correlation = -0.5, .has_momentum = false}));
}

/// Gains in heartbeats must be within the coordinator's limits.
TEST(StepFigures, ASmallGradientAfterLargeOnesHasTheLargestGain) {
  const quant::Products small{.xx = 1e60, .xy = -1e10, .yy = 1e-40};
  EXPECT_EQ(figures_of(small, rule(0.5F, true))->gain, -protocol::max_abs_gain);
}

TEST(StepFigures, ThereAreNoneOfNothing) {
  EXPECT_FALSE(figures_of({.xx = 1, .xy = 0, .yy = 0}, rule(0.5F, true)));
  EXPECT_FALSE(figures_of({.xx = 1, .xy = NAN, .yy = NAN}, rule(0.5F, true)));
  EXPECT_FALSE(figures_of({.xx = INFINITY, .xy = 0, .yy = 1}, rule(0.5F, true)));
}

TEST(StepFigures, TheSpreadIsADistance) {
  EXPECT_EQ(distance_of({.xx = 25, .xy = 12, .yy = 8}), 3);
  EXPECT_EQ(distance_of({.xx = 1, .xy = 1 + 1e-15, .yy = 1}), 0) << "rounding";
  EXPECT_TRUE(std::isnan(distance_of({.xx = NAN, .xy = NAN, .yy = 1})))
      << "NaN must not become a distance of 0";
}

// H = 1, tau = 0, lr = mu = 1/2; both replicas move by 1 in each step, so g = -1. Steps 13 to 24 have
// momentum: before step 16 it is -(1 + 1/2 + 1/4 + 1/8).
TEST(StepFigures, OfCheckedRoundsByHand) {
  auto config = config_of(1, 1, 0, std::nullopt);
  config.optimizer = {
      .lr = 0.5, .momentum = 0.5, .nesterov = true, .average_first = 0.1875, .average_last = 0.625};
  config.steps = 64;
  Replicas replicas(
      config, FragmentLayout({{0, 1}}, 16), [](std::size_t, std::uint64_t, std::size_t) { return 1.0F; },
      std::vector<ReplicaState>(2, ReplicaState{{0.0F}, {}}));
  const auto expect = [&](const FragmentFigures& expected) {
    for (std::size_t m = 0; m < replicas.size(); ++m) {
      EXPECT_EQ(replicas.at(m).loop.figures(), std::vector{expected}) << "replica " << m;
    }
  };
  replicas.train(15);
  expect({});
  // The carry merge takes off what was sent, which is all that a replica was ahead by.
  const double gain = 1.5 + 0.25 * 1.875, correlation = 1.875 / 1.9375;
  const FragmentFigures at_16{
      .round = 16, .step = figures(1, gain, correlation), .spread_at_send = 1, .spread_at_apply = 0};
  replicas.train(16);
  expect(at_16);
  replicas.train(31);
  expect(at_16);
  replicas.train(32);
  auto averaged = figures(1, 1, 1);
  averaged.has_momentum = false;
  expect({.round = 32, .step = averaged, .spread_at_send = 1, .spread_at_apply = 0});
  const auto& stats = replicas.at(0).loop.stats();
  EXPECT_EQ(stats.measured, 1U) << "the mean must only count steps with momentum";
  EXPECT_EQ(stats.gains, gain);
  EXPECT_EQ(stats.correlations, correlation);
}

/// The figures of a run with this config; fails the test unless they agree on all replicas.
std::vector<FragmentFigures> figures_at_the_end(const OuterConfig& config) {
  Replicas replicas(config, layout_of(3), 3, random_step);
  replicas.train(110);
  auto out = replicas.at(0).loop.figures();
  for (std::size_t p = 0; p < out.size(); ++p) {
    EXPECT_EQ(out[p].round, 16 - p);
    EXPECT_TRUE(out[p].step);
    EXPECT_GT(out[p].spread_at_send, 0);
    for (std::size_t m = 1; m < replicas.size(); ++m) {
      const auto& theirs = replicas.at(m).loop.figures()[p];
      EXPECT_EQ(theirs.round, out[p].round);
      EXPECT_EQ(theirs.step, out[p].step) << "replica " << m;
      EXPECT_NE(theirs.spread_at_send, out[p].spread_at_send) << "each replica must have its own spread";
    }
  }
  return out;
}

TEST(StepFigures, AreEqualOnAllReplicasAndInEveryRun) {
  for (const auto* codec : {"fp32", "4bit", "int8"}) {
    for (const auto alpha : {std::optional<double>(), std::optional(0.5)}) {
      SCOPED_TRACE(std::string(codec) + (alpha ? ", alpha" : ", carry"));
      auto config = config_of(3, 6, 2, alpha);
      config.codec = codec;
      config.codec_block = 0;
      config.chunk_elements = 16;
      config.warmup_steps = 2;
      EXPECT_EQ(figures_at_the_end(config), figures_at_the_end(config));
    }
  }
}

TEST(StepFigures, ARestoredLoopHasNoneUntilItAppliesACheckedRound) {
  const auto config = config_of(2, 4, 1, 0.5);
  Replicas replicas(config, layout_of(2), 2, random_step);
  replicas.train(80);
  EXPECT_TRUE(replicas.at(0).loop.figures().front().step);
  Replicas again(config, layout_of(2), random_step, replicas.save());
  EXPECT_EQ(again.at(0).loop.figures(), std::vector<FragmentFigures>(2));
  replicas.train(140);
  again.train(140);
  EXPECT_EQ(again.at(0).loop.figures(), replicas.at(0).loop.figures());
}

}  // namespace
}  // namespace isthmus::outer_sync
