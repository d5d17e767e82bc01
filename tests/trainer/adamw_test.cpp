#include "isthmus/trainer/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "isthmus/base/hash.h"
#include "isthmus/base/random.h"
#include "isthmus/trainer/device.h"

namespace isthmus::trainer {
namespace {

InnerConfig config() {
  InnerConfig c;
  c.beta1 = 0.9;
  c.beta2 = 0.99;
  c.eps = 1e-8;
  c.weight_decay = 0.1;
  return c;
}

/// Parameters, moments and twin of n elements.
struct Buffers {
  explicit Buffers(std::size_t n, bool with_twin = false) : p(n), m(n), v(n), twin(with_twin ? n : 0) {}
  AdamWSpans spans() { return {p, m, v, twin}; }
  std::vector<float> p, m, v;
  std::vector<std::uint16_t> twin;
};

TEST(AdamW, FirstTwoStepsAsComputedByHand) {
  Buffers b(1);
  b.p[0] = 1;
  BiasCorrection bias(config(), 0);
  // m = .05, v = .0025. After bias correction these are the gradient and its square, so the step is lr;
  // before it, decay subtracts lr * .1.
  adamw(bias.next(config(), 0.1, 1), true, std::vector<float>{0.5F}, b.spans());
  EXPECT_NEAR(b.m[0], 0.05, 1e-8);
  EXPECT_NEAR(b.v[0], 0.0025, 1e-9);
  EXPECT_NEAR(b.p[0], 0.99 - 0.1, 1e-6);
  // m = .045 - .1 * .25 * .5 = .0325 with clip scale .5; v = .002475 + .01 * .015625 = .00263125.
  adamw(bias.next(config(), 0.1, 0.5F), true, std::vector<float>{-0.25F}, b.spans());
  EXPECT_NEAR(b.m[0], 0.0325, 1e-8);
  EXPECT_NEAR(b.v[0], 0.00263125, 1e-9);
  const double step = 0.1 * (0.0325 / 0.19) / std::sqrt(0.00263125 / 0.0199);
  EXPECT_NEAR(b.p[0], 0.89 * 0.99 - step, 1e-6);
}

TEST(AdamW, BiasCorrectionTakesAnyNumberOfStepsAtOnce) {
  for (const std::uint64_t steps : {1U, 30U, 400U}) {
    BiasCorrection one_by_one(config(), 0), at_once(config(), steps);
    for (std::uint64_t t = 0; t < steps; ++t) static_cast<void>(one_by_one.next(config(), 0.1, 1));
    const auto expected = one_by_one.next(config(), 0.1, 1), got = at_once.next(config(), 0.1, 1);
    EXPECT_EQ(got.rate, expected.rate) << steps;
    EXPECT_EQ(got.scale_v, expected.scale_v) << steps;
  }
  EXPECT_EQ(BiasCorrection(config(), UINT64_MAX).next(config(), 0.1, 1).scale_v, 1)
      << "the number of steps comes from another machine and may be any value";
}

TEST(AdamW, WithoutDecayOnlyTheGradientMovesIt) {
  Buffers b(1);
  b.p[0] = 1;
  adamw(BiasCorrection(config(), 0).next(config(), 0.1, 1), false, std::vector<float>{0.0F}, b.spans());
  EXPECT_EQ(b.p[0], 1);
}

std::vector<float> numbers(std::uint64_t stream, std::size_t n, float scale) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = (random_unit(9, stream, i) - 0.5F) * scale;
  return values;
}

Digest digest_of(Buffers& b) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(b.p)))
      .update(std::as_bytes(std::span(b.m)))
      .update(std::as_bytes(std::span(b.v)));
  return hasher.update(std::as_bytes(std::span(b.twin))).finish();
}

TEST(AdamW, BitsArePinned) {
  // The bits of a step are agreed state. pinned.py computes this digest from the formula with other
  // arithmetic.
  const std::size_t n = 1003;
  Buffers b(n, true);
  b.p = numbers(0, n, 2);
  BiasCorrection bias(config(), 0);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    const auto g = numbers(t, n, 0.1F);
    adamw(bias.next(config(), 3e-3, clip_scale(gradient_norm(g), 0.5)), true, g, b.spans());
  }
  EXPECT_EQ(digest_of(b).hex(), "d14ca1ce5ab569b37b2e130b2cc8bf3928c2d92dfed26383eb6cd838f4a2be41");
}

TEST(AdamW, GradientsInBf16GiveTheSameBitsAsTheirFp32Values) {
  const std::size_t n = 5000;
  std::vector<std::uint16_t> bf16(n);
  round_to_bf16(numbers(1, n, 1), bf16);
  std::vector<float> wide(n);
  widen_bf16(bf16, wide);
  Buffers a(n), b(n);
  const auto step = BiasCorrection(config(), 0).next(config(), 0.01, 0.3F);
  adamw(step, true, std::span<const std::uint16_t>(bf16), a.spans());
  adamw(step, true, wide, b.spans());
  EXPECT_EQ(digest_of(a), digest_of(b));
  EXPECT_EQ(gradient_norm(std::span<const std::uint16_t>(bf16)), gradient_norm(wide));
}

TEST(AdamW, BiasCorrectionContinuesAfterARestart) {
  BiasCorrection whole(config(), 0);
  for (int t = 0; t < 7; ++t) (void)whole.next(config(), 0.1, 1);
  BiasCorrection restarted(config(), 7);
  const auto a = whole.next(config(), 0.1, 1);
  const auto b = restarted.next(config(), 0.1, 1);
  EXPECT_EQ(a.rate, b.rate);
  EXPECT_EQ(a.scale_v, b.scale_v);
}

TEST(GradientNorm, IsTheLengthAndIndependentOfHowItIsCut) {
  for (const std::size_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 50000}) {
    const auto g = numbers(3, n, 2);
    double squares = 0;
    for (const float x : g) squares += static_cast<double>(x) * x;
    EXPECT_NEAR(gradient_norm(g), std::sqrt(squares), 1e-12 * std::sqrt(squares)) << n;
  }
}

TEST(AdamW, ThreadsDoNotChangeTheBits) {
  const std::size_t n = 100'003;
  const auto with_threads = [&](std::int64_t threads) {
    prepare_process({.threads = threads, .deterministic = false});
    Buffers b(n, true);
    b.p = numbers(0, n, 2);
    const auto g = numbers(1, n, 0.1F);
    adamw(BiasCorrection(config(), 0).next(config(), 0.01, clip_scale(gradient_norm(g), 0.5)), true, g,
          b.spans());
    return digest_of(b);
  };
  const auto three = with_threads(3);
  EXPECT_EQ(with_threads(1), three);
}

TEST(GradientNorm, IsPinned) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(gradient_norm(numbers(3, 10007, 2))), 0x404cce39c8a91835ULL);
}

TEST(ClipScale, OnlyShortens) {
  EXPECT_EQ(clip_scale(0.5, 1), 1);
  EXPECT_EQ(clip_scale(2, 1), 0.5);
  EXPECT_EQ(clip_scale(1e9, 0), 1);  // 0 never clips
}

TEST(DecaySegments, CoverTheBufferInOrder) {
  const std::vector<outer_sync::Range> decay = {{0, 10}, {12, 8}};
  const auto segments = decay_segments(decay, 25);
  ASSERT_EQ(segments.size(), 4);
  EXPECT_EQ(segments[0].range, (outer_sync::Range{0, 10}));
  EXPECT_EQ(segments[1].range, (outer_sync::Range{10, 2}));
  EXPECT_EQ(segments[2].range, (outer_sync::Range{12, 8}));
  EXPECT_EQ(segments[3].range, (outer_sync::Range{20, 5}));
  EXPECT_TRUE(segments[0].decay && !segments[1].decay && segments[2].decay && !segments[3].decay);
}

TEST(Bf16, RoundsToNearestEven) {
  const std::vector<float> values = {1.0F, 1.00390625F, 1.01171875F, 1.005F, -1.00390625F, 0.0F, -0.0F};
  std::vector<std::uint16_t> bits(values.size());
  round_to_bf16(values, bits);
  EXPECT_EQ(bits, (std::vector<std::uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80, 0, 0x8000}));
}

}  // namespace
}  // namespace isthmus::trainer
