// Stochastic rounding: expected values, and the inputs of its random numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codec_support.h"

namespace isthmus::quant {
namespace {

/// Stochastic rounding; topk keeps all elements.
CodecSpec drawn_spec(CodecKind kind) {
  return {.kind = kind, .rounding = Rounding::stochastic, .top_k = 4096};
}

/// The two numbers that a value may be rounded to.
struct Neighbours {
  double below = 0;
  double above = 0;
};

Neighbours neighbours_in(const CodecSpec& spec, float x, float scale) {
  const auto levels = levels_of(spec.kind);
  const double magnitude = std::abs(double{x});
  const auto above = std::find_if(levels.begin(), levels.end(),
                                  [&](float level) { return double{level} * scale >= magnitude; });
  if (above == levels.end()) return {};  // clipped
  const double low = above == levels.begin() ? -double{levels[0]} : double{*(above - 1)};
  return x < 0 ? Neighbours{-*above * double{scale}, -low * scale}
               : Neighbours{low * scale, *above * double{scale}};
}
Neighbours neighbours_in_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x) >> 16;
  const double towards_zero = bf16_value(bits);
  const double outward = bf16_value(bits + 1);
  return {std::min(towards_zero, outward), std::max(towards_zero, outward)};
}

/// Errors of the means of many encodings, relative to their random variation.
struct Bias {
  double worst = 0;     ///< largest error of one element, relative to the bound of Bernstein's inequality at
                        ///< probability 1 - 1e-9
  double outward = 0;   ///< sum of all errors away from zero, in standard deviations
  double positive = 0;  ///< sum of all errors, in standard deviations
};

Bias bias_of(const CodecSpec& spec, const Values& x, unsigned encodings) {
  std::vector<double> sums(x.size(), 0.0);
  Encoded bytes;
  Values y(x.size());
  for (unsigned round = 0; round < encodings; ++round) {
    bytes = encoded(spec, x, {.key = noise_key(1, 2, round)});
    EXPECT_TRUE(decode(spec, bytes, y));
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] += y[i];
  }
  Bias bias;
  double variance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    // topk's scale comes first in its bytes, like that of a format with one block.
    const auto block = spec.kind == CodecKind::topk ? 0 : i / spec.block;
    const auto [below, above] = spec.kind == CodecKind::bf16
                                    ? neighbours_in_bf16(x[i])
                                    : neighbours_in(spec, x[i], scale_of(spec, bytes, block));
    if (above == below) continue;
    const double part = (x[i] - below) / (above - below);
    const double error = (sums[i] - double{x[i]} * encodings) / (above - below);
    const double own_variance = encodings * part * (1 - part);
    constexpr double surprise = 21;  // -log(1e-9)
    bias.worst = std::max(bias.worst, std::abs(error) / (std::sqrt(2 * surprise * own_variance) + surprise));
    bias.positive += error;
    bias.outward += x[i] < 0 ? -error : error;
    variance += own_variance;
  }
  bias.positive /= std::sqrt(variance);
  bias.outward /= std::sqrt(variance);
  return bias;
}

TEST(StochasticRounding, ExpectationIsTheValue) {
  for (const auto kind : all_kinds) {
    if (kind == CodecKind::fp32) continue;
    for (const auto scale : {ScaleFormat::bf16, ScaleFormat::e8m0}) {
      if (!has_blocks(kind) && scale != ScaleFormat::bf16) continue;
      auto spec = drawn_spec(kind);
      spec.scale = scale;
      const auto bias = bias_of(spec, gaussian(1000, 5), 3000);
      EXPECT_LT(bias.worst, 1) << spec;
      EXPECT_LT(std::abs(bias.outward), 5) << spec;
      EXPECT_LT(std::abs(bias.positive), 5) << spec;
    }
  }
}

TEST(StochasticRounding, LevelsAreKept) {
  for (const auto kind : block_kinds) {
    auto spec = drawn_spec(kind);
    spec.block = 16;
    const float top = levels_of(kind).back();
    Values x;
    for (const float level : levels_of(kind)) x.insert(x.end(), {unit_level(kind), level, -level});
    while (x.size() % 16 != 0) x.push_back(unit_level(kind));
    // Puts the largest magnitude into every block, so that all have the same scale.
    for (std::size_t i = 0; i < x.size(); i += 16) x[i] = unit_level(kind);
    Values y(x.size());
    for (unsigned round = 0; round < 50; ++round) {
      const auto bytes = encoded(spec, x, {.key = noise_key(1, 1, round)});
      ASSERT_TRUE(decode(spec, bytes, y));
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::abs(x[i]) <= top) {
          ASSERT_EQ(y[i], x[i]) << spec << " " << i;
        }
      }
    }
  }
}

TEST(StochasticRounding, KeysDecide) {
  const auto x = gaussian(4096, 6);
  for (const auto kind : all_kinds) {
    const auto spec = drawn_spec(kind);
    const auto bytes = encoded(spec, x, {.key = 1});
    EXPECT_EQ(bytes, encoded(spec, x, {.key = 1})) << spec;
    if (kind == CodecKind::fp32) continue;
    EXPECT_NE(bytes, encoded(spec, x, {.key = 2})) << spec;
    EXPECT_NE(bytes, encoded(spec, x, {.key = 1ULL << 32 | 1}))
        << spec << ": both halves of the key must count";
    EXPECT_NE(bytes, encoded(spec, x, {.key = 1, .first_element = 4096})) << spec;
  }
}

TEST(StochasticRounding, NearestKnowsNoKey) {
  const auto x = gaussian(1000, 6);
  for (const auto kind : all_kinds)
    EXPECT_EQ(encoded({.kind = kind}, x, {.key = 1}),
              encoded({.kind = kind}, x, {.key = 2, .first_element = 64}));
}

TEST(StochasticRounding, KeysOfSeedsFragmentsAndRoundsDiffer) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (std::uint64_t fragment = 0; fragment < 10; ++fragment)
      for (std::uint64_t round = 0; round < 10; ++round) keys.insert(noise_key(seed, fragment, round));
  EXPECT_EQ(keys.size(), 1000U);
}

/// Compares the scales and codes of a part with those of the whole from element `begin` on.
void expect_part_of(const CodecSpec& spec, const Encoded& whole, std::size_t n, const Encoded& part,
                    std::size_t begin, std::size_t length) {
  if (!has_blocks(spec.kind)) {
    const auto at = static_cast<std::ptrdiff_t>(encoded_size(spec, begin));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + at)) << spec << " at " << begin;
    return;
  }
  for (std::size_t b = 0; b < blocks_of(spec, length); ++b)
    EXPECT_EQ(scale_of(spec, part, b), scale_of(spec, whole, begin / spec.block + b))
        << spec << " at " << begin;
  for (std::size_t i = 0; i < length; ++i)
    ASSERT_EQ(code_at(spec, part, length, i), code_at(spec, whole, n, begin + i))
        << spec << " at " << begin + i;
}

TEST(StochasticRounding, PiecesAreEncodedLikeTheWhole) {
  constexpr std::size_t n = 4 * 4096 + 1001;
  constexpr std::uint64_t first = 640;
  const auto x = gaussian(n, 7);
  for (const auto rounding : all_roundings) {
    for (const auto kind : all_kinds) {
      auto spec = default_spec(kind);
      spec.rounding = rounding;
      const auto whole = encoded(spec, x, {.key = 9, .first_element = first});
      for (const std::size_t units : {1, 3, 50}) {
        const auto step = std::max<std::size_t>(units * unit_of(spec), 64);
        for (std::size_t begin = 0; begin < n; begin += step) {
          const auto length = std::min(step, n - begin);
          const auto part =
              encoded(spec, std::span(x).subspan(begin, length), {.key = 9, .first_element = first + begin});
          expect_part_of(spec, whole, n, part, begin, length);
        }
      }
    }
  }
}

TEST(StochasticRounding, ElementsGoUpTo32Bits) {
  const auto x = gaussian(128, 8);
  const auto spec = drawn_spec(CodecKind::lloyd4);
  const auto bytes = encoded(spec, x, {.key = 3, .first_element = (1ULL << 32) - 128});
  EXPECT_NE(bytes, encoded(spec, x, {.key = 3}));
}

}  // namespace
}  // namespace isthmus::quant
