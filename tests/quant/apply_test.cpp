// Checks the outer step and the merge against numbers worked out by hand.

#include <gmock/gmock.h>

#include <cstdint>
#include <limits>

#include "codec_support.h"

namespace isthmus::quant {
namespace {

using testing::ElementsAre;

std::vector<std::uint32_t> bits(const Values& values) {
  std::vector<std::uint32_t> out;
  for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
  return out;
}

void apply(const OuterStep& step, const Values& gradient, Values& theta, Values& velocity, Values& local) {
  const CodecSpec plain{.kind = CodecKind::fp32};
  auto bytes = buffer(plain, gradient.size());
  ASSERT_FALSE(encode(plain, gradient, {}, {}, bytes));
  ASSERT_TRUE(decode_apply(plain, bytes, step, theta, velocity, local));
}
void apply(const OuterStep& step, const Values& gradient, Values& theta, Values& velocity) {
  Values none;
  apply(step, gradient, theta, velocity, none);
}
/// The merge alone: a step that leaves `global` where it is.
void merge(float alpha, const Values& global, Values& local) {
  auto theta = global;
  Values velocity(global.size(), 0.0F);
  apply({.alpha = alpha}, Values(global.size(), 0.0F), theta, velocity, local);
  EXPECT_EQ(bits(theta), bits(global));
}

TEST(OuterStep, NesterovByHand) {
  // mu = lr = 1/2, so every number below is exact in fp32.
  const OuterStep step{.lr = 0.5F, .momentum = 0.5F, .nesterov = true};
  Values theta{1, -2};
  Values velocity{0, 4};
  apply(step, Values{2, 1}, theta, velocity);
  // v = .5 * {0, 4} + {2, 1} = {2, 3};  theta -= .5 * (g + .5 v) = .5 * {3, 2.5}
  EXPECT_THAT(velocity, ElementsAre(2, 3));
  EXPECT_THAT(theta, ElementsAre(-0.5F, -3.25F));
  apply(step, Values{-4, 0}, theta, velocity);
  // v = {1 - 4, 1.5 + 0};  theta -= .5 * {-4 - 1.5, .75}
  EXPECT_THAT(velocity, ElementsAre(-3, 1.5F));
  EXPECT_THAT(theta, ElementsAre(2.25F, -3.625F));
}

TEST(OuterStep, PlainMomentumByHand) {
  const OuterStep step{.lr = 0.25F, .momentum = 0.5F, .nesterov = false};
  Values theta{1};
  Values velocity{4};
  apply(step, Values{2}, theta, velocity);  // v = 2 + 2 = 4;  theta = 1 - 1
  EXPECT_THAT(velocity, ElementsAre(4));
  EXPECT_THAT(theta, ElementsAre(0));
}

TEST(OuterStep, PlainAveragingSubtractsTheGradient) {
  const OuterStep step{.lr = 1, .momentum = 0, .nesterov = false};
  Values theta{3, 0.1F};
  Values velocity{0, 0};
  const Values gradient{0.5F, 0.3F};
  apply(step, gradient, theta, velocity);
  EXPECT_EQ(bits(theta), bits({2.5F, 0.1F - 0.3F}));
}

// The defaults in fp32: each operation rounds once and is not fused with the next. A fused multiply-add would
// change bits in the second case, so this test finds a compiler or kernel that fuses.
TEST(OuterStep, EveryOperationRoundsOnce) {
  const OuterStep step;
  Values theta{0.1F};
  Values velocity{1.0F / 3};
  apply(step, Values{0.7F}, theta, velocity);
  const volatile float mv = 0.9F * (1.0F / 3);
  const volatile float v = mv + 0.7F;
  const volatile float mv2 = 0.9F * v;
  const volatile float direction = 0.7F + mv2;
  const volatile float change = 0.7F * direction;
  const volatile float expected = 0.1F - change;
  EXPECT_EQ(bits(velocity), bits({v}));
  EXPECT_EQ(bits(theta), bits({expected}));

  // v = fl(fl(mu v) + g) with mu v = 1 + 2^-12 + 2^-26: unfused, the last bit is lost before -1 is added.
  const float x = 1 + 0x1p-13F;
  const OuterStep unfused{.lr = 1, .momentum = x, .nesterov = false};
  velocity = {x};
  theta = {0};
  apply(unfused, Values{-1}, theta, velocity);
  EXPECT_EQ(velocity[0], 0x1p-12F) << "the multiply and the add were fused; compile with -ffp-contract=off";
  EXPECT_NE(std::fma(x, x, -1.0F), 0x1p-12F)
      << "fused and unfused arithmetic give the same result in this case";
}

TEST(Merge, AlphaZeroCopiesEveryBit) {
  const Values global{1.5F, -0.0F, std::numeric_limits<float>::denorm_min(), 0x1p127F};
  Values local{std::numeric_limits<float>::quiet_NaN(), 1, std::numeric_limits<float>::infinity(), -3};
  merge(0, global, local);
  EXPECT_EQ(bits(local), bits(global)) << "alpha 0 must copy, so that even a NaN in the old value disappears";
}

TEST(Merge, AlphaOneKeepsEveryBit) {
  const Values global{5, 6, 7};
  const Values before{1.0F / 3, -0.0F, std::numeric_limits<float>::denorm_min()};
  auto local = before;
  merge(1, global, local);
  EXPECT_EQ(bits(local), bits(before)) << "alpha 1 must not change the local parameters";
}

TEST(Merge, HalfIsThePlainMean) {
  const Values global{3, -1, 0.1F};
  Values local{1, 1, 0.3F};
  merge(0.5F, global, local);
  const volatile float a = 0.5F * 0.3F;
  const volatile float b = 0.5F * 0.1F;
  EXPECT_EQ(bits(local), bits({2, 0, a + b}));
}

TEST(Merge, OtherWeightsRoundOncePerOperation) {
  const float alpha = 0.3F;
  const volatile float beta = 1 - alpha;
  const volatile float a = alpha * 0.7F;
  const volatile float b = beta * 1.1F;
  const volatile float expected = a + b;
  Values local{0.7F};
  merge(alpha, Values{1.1F}, local);
  EXPECT_EQ(bits(local), bits({expected}));
}

TEST(Merge, CarryMovesTheLocalParametersAsTheGlobalOnes) {
  const OuterStep step{.lr = 0.5F, .momentum = 0.5F, .nesterov = true, .merge = Merge::carry};
  Values theta{1, 0.1F};
  Values velocity{0, 0};
  Values local{7, 0.7F};
  apply(step, Values{2, 0.3F}, theta, velocity, local);
  // theta -= .5 (2 + .5 * 2) = 1.5
  EXPECT_EQ(theta[0], -0.5F);
  EXPECT_EQ(local[0], 5.5F);
  const volatile float half = 0.5F * 0.3F;
  const volatile float direction = 0.3F + half;
  const volatile float change = 0.5F * direction;
  const volatile float after = 0.1F - change;
  const volatile float moved = after - 0.1F;
  const volatile float expected = 0.7F + moved;
  EXPECT_EQ(bits(local)[1], bits({expected})[0]) << "each operation must round once";
}

}  // namespace
}  // namespace isthmus::quant
