// Error feedback: the loss of one round is sent in later rounds.

#include <gtest/gtest.h>

#include "codec_support.h"

namespace isthmus::quant {
namespace {

constexpr std::size_t elements = 1000;

/// Sums over many rounds of the intended and sent values, and the remaining residual.
struct Rounds {
  std::vector<double> meant = std::vector<double>(elements, 0.0);
  std::vector<double> sent = std::vector<double>(elements, 0.0);
  std::vector<double> roundings =
      std::vector<double>(elements, 0.0);  ///< bound of fp32's rounding errors, two per round
  Values residual = Values(elements, 0.0F);
};

Rounds run(const CodecSpec& spec, unsigned rounds) {
  Rounds all;
  auto bytes = buffer(spec, elements);
  Values y(elements);
  for (unsigned round = 0; round < rounds; ++round) {
    const auto x = gaussian(elements, round);
    const auto before = all.residual;
    EXPECT_FALSE(encode(spec, x, {all.residual, 1}, {.key = round}, bytes)) << spec;
    EXPECT_TRUE(decode(spec, bytes, y));
    for (std::size_t i = 0; i < elements; ++i) {
      all.meant[i] += x[i];
      all.sent[i] += y[i];
      all.roundings[i] += 0x1p-24 * (std::abs(double{x[i]} + before[i]) + std::abs(all.residual[i]));
    }
  }
  return all;
}

TEST(Feedback, NothingIsLostInTheLongRun) {
  for (const auto kind : all_kinds) {
    for (const auto rounding : all_roundings) {
      auto spec = default_spec(kind);
      spec.rounding = rounding;
      const auto all = run(spec, 50);
      for (std::size_t i = 0; i < elements; ++i)
        ASSERT_LE(std::abs(all.sent[i] + all.residual[i] - all.meant[i]), 1.01 * all.roundings[i])
            << spec << " element " << i;
    }
  }
}

TEST(Feedback, WhatIsLeftStaysSmall) {
  for (const auto kind : all_kinds) {
    // With topk an element can wait many rounds, and sign has levels as far apart as its values.
    if (kind == CodecKind::topk || kind == CodecKind::sign) continue;
    const auto all = run(default_spec(kind), 50);
    for (const float left : all.residual) EXPECT_LT(std::abs(left), 4) << to_string(kind);
  }
}

/// Decay only reduces the residual, here of an element that topk does not keep.
TEST(Feedback, DecayIsWhatTheResidualIsMultipliedWith) {
  const CodecSpec spec{.kind = CodecKind::topk, .top_k = 1};
  constexpr float decay = 0.75F;
  Values residual(64, 0.0F);
  auto bytes = buffer(spec, residual.size());
  Values x(residual.size(), 0.0F);
  x[5] = 0.5F;
  float expected = 0;
  for (int round = 0; round < 20; ++round) {
    x[0] = 100;  // the only element that is kept
    ASSERT_FALSE(encode(spec, x, {residual, decay}, {}, bytes));
    const float carried = decay * expected;
    expected = carried + x[5];
    ASSERT_EQ(residual[5], expected) << round;
  }
  EXPECT_NEAR(residual[5], 0.5F / (1 - decay), 0.01);
}

TEST(Feedback, NoDecayForgetsEverything) {
  for (const auto kind : all_kinds) {
    const auto spec = default_spec(kind);
    const auto x = gaussian(elements, 3);
    auto residual = gaussian(elements, 4);
    auto bytes = buffer(spec, elements);
    auto expected = bytes;
    ASSERT_FALSE(encode(spec, x, {residual, 0}, {}, bytes));
    ASSERT_FALSE(encode(spec, x, {}, {}, expected));
    EXPECT_EQ(bytes, expected) << spec;
  }
}

TEST(Feedback, ZerosDrainTheResidual) {
  const auto spec = default_spec(CodecKind::lloyd4);
  const Values zero(elements, 0.0F);
  auto residual = gaussian(elements, 5);
  auto bytes = buffer(spec, elements);
  for (int round = 0; round < 100; ++round) ASSERT_FALSE(encode(spec, zero, {residual, 1}, {}, bytes));
  for (const float left : residual) EXPECT_LT(std::abs(left), 0x1p-100F);
}

}  // namespace
}  // namespace isthmus::quant
