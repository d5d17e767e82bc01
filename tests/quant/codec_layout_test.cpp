// The formats byte by byte, as every implementation must write them.

#include <gtest/gtest.h>

#include <initializer_list>

#include "codec_support.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/random.h"

namespace isthmus::quant {
namespace {

Encoded bytes(std::initializer_list<int> list) {
  Encoded out;
  for (const auto b : list) out.push_back(static_cast<std::byte>(b));
  return out;
}

/// `start` and zeros up to n.
Values followed_by_zeros(Values start, std::size_t n) {
  start.resize(n, 0.0F);
  return start;
}

TEST(CodecLayout, Fp32IsTheValuesLittleEndian) {
  EXPECT_EQ(encoded({.kind = CodecKind::fp32}, Values{1.0F, -2.5F}),
            bytes({0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0}));
}

TEST(CodecLayout, Bf16RoundsToNearestEven) {
  // 1 + 2^-8 is half-way between 0x3f80 and 0x3f81, 1 + 3 * 2^-8 half-way between 0x3f81 and 0x3f82.
  const Values x = {1.0F + 0x1p-8F, 1.0F + 0x3p-8F, 1.0F + 0x1.0002p-8F, -0.0F};
  EXPECT_EQ(encoded({.kind = CodecKind::bf16}, x), bytes({0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f, 0x00, 0x80}));
}

TEST(CodecLayout, Int8IsSignAndMagnitude) {
  // absmax 127, so the scale is 1 (0x3f80). Ties go to even.
  const auto x = followed_by_zeros({127, -127, 0.5F, 1.5F, -2.5F, 99.4F, -0.0F}, 16);
  Encoded expected = bytes({0x80, 0x3f, 127, 0xff, 0, 2, 0x82, 99, 0x80});
  expected.resize(2 + 16);
  EXPECT_EQ(encoded({.kind = CodecKind::int8, .block = 16}, x), expected);
}

TEST(CodecLayout, Int4ScalesFirstThenGroupsOf32) {
  // 35 elements in blocks of 16: scales 1 (0x3f80), 2 (0x4000) and 1, then byte j with elements j and 16 + j.
  auto x = followed_by_zeros({7, -7, 0.5F, 1.5F, -2.5F, 3.49F}, 35);
  x[16] = 14;
  x[17] = -2;
  x[18] = 5;  // 5 / 2 = 2.5 rounds to 2
  x[32] = -7;
  const auto expected = bytes({0x80, 0x3f, 0x00, 0x40, 0x80, 0x3f,        //
                               0x77, 0x9f, 0x20, 0x02, 0x0a, 0x03, 0, 0,  //
                               0,    0,    0,    0,    0,    0,    0, 0,  //
                               0x0f, 0,    0,    0,    0,    0,    0, 0,  //
                               0,    0,    0,    0,    0,    0,    0, 0});
  EXPECT_EQ(encoded({.kind = CodecKind::int4, .block = 16}, x), expected);
}

TEST(CodecLayout, E3m0) {
  // Scale 8 (0x4100); levels 8, 4, 2, 1, .5, .25, .125 are codes 7 .. 1. Half-way goes up: 6 to 8, -3 to -4,
  // 1/16 to 1/8.
  const Values x = {8, -8,    4,  -2,      1,       0.5F,   -0.25F, 0.125F,  //
                    6, 5.99F, -3, 0.0625F, 0.0624F, -0.01F, 0,      -0.0F,  /*next block*/ 0.25F};
  const auto expected = bytes({0x00, 0x41, 0x80, 0x3e,                //
                               0x77, 0xf,  6,    0xd,  4, 3, 0xa, 1,  //
                               7,    6,    0xe,  1,    0, 8, 0,   8});
  const CodecSpec spec{.kind = CodecKind::e3m0, .block = 16};
  EXPECT_EQ(encoded(spec, x), expected);
  Values y(x.size());
  ASSERT_TRUE(decode(spec, expected, y));
  EXPECT_EQ(y, (Values{8, -8, 4, -2, 1, 0.5F, -0.25F, 0.125F, 8, 4, -4, 0.125F, 0, 0, 0, 0, 0.25F}));
}

TEST(CodecLayout, Lloyd3HasTwoIndexPlanesAndOneOfSigns) {
  // Scale 1. Elements 0, 16, 64, 127: codes -3, 1, 2 and -1; all others are +0.
  auto x = followed_by_zeros({-1}, 128);
  x[16] = 146 / 512.0F;
  x[64] = 262 / 512.0F;
  x[127] = -146 / 512.0F;
  Encoded expected(2 + 48);
  expected[0] = std::byte{0x80};
  expected[1] = std::byte{0x3f};
  const auto group = expected.begin() + 2;
  group[0] = std::byte{3 | 1 << 2};
  group[16] = std::byte{2};
  group[16 + 15] = std::byte{1 << 6};
  group[32] = std::byte{1};
  group[32 + 15] = std::byte{1 << 7};
  EXPECT_EQ(encoded({.kind = CodecKind::lloyd3, .block = 128}, x), expected);
}

TEST(CodecLayout, SignsScaleIsTheMean) {
  // Mean 1.5 (0x3fc0); byte j has elements j, 16 + j, ..., from the lowest bit up.
  Values x(32, 1.0F);
  std::fill_n(x.begin(), 16, -2.0F);
  x[17] = -1;
  auto expected = bytes({0xc0, 0x3f});
  expected.resize(2 + 16, std::byte{1});
  expected[3] = std::byte{3};
  EXPECT_EQ(encoded({.kind = CodecKind::sign, .block = 32}, x), expected);
}

TEST(CodecLayout, Topk) {
  // Keeps three of 192, at 2, 100 and 191, with scale 1: 12-bit positions 002 064 0bf, then codes 1, -0, 1.
  auto x = followed_by_zeros({0, 0.25F, 0.9F}, 192);
  x[100] = -0.5F;
  x[191] = 1;
  EXPECT_EQ(encoded({.kind = CodecKind::topk}, x),
            bytes({0x80, 0x3f, 0x02, 0x40, 0x06, 0xbf, 0x00, 1 | 2 << 2 | 1 << 4}));
}

TEST(CodecLayout, ScaleFormats) {
  // Largest magnitude 3: bf16 0x4040; 3 = 1.5 * 2, e5m3 (28 + 1) * 8 + 1 + 4; the nearest power of two is 4.
  const auto x = followed_by_zeros({3}, 16);
  CodecSpec spec{.kind = CodecKind::lloyd4, .block = 16};
  EXPECT_EQ(encoded(spec, x)[1], std::byte{0x40});
  spec.scale = ScaleFormat::e5m3;
  EXPECT_EQ(encoded(spec, x)[0], static_cast<std::byte>(29 * 8 + 1 + 4));
  spec.scale = ScaleFormat::e8m0;
  EXPECT_EQ(encoded(spec, x)[0], static_cast<std::byte>(127 + 2));
}

TEST(CodecLayout, AllZeroBlocksAreZeros) {
  for (const auto kind : block_kinds) {
    const CodecSpec spec{.kind = kind, .block = 16};
    EXPECT_EQ(encoded(spec, Values(17, 0.0F)), buffer(spec, 17)) << spec;
  }
}

// ---- digests printed by pinned_digests.py, which uses exact fractions ----

Values scattered(std::size_t n, int lowest, int exponents) {
  Values out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto exponent = static_cast<int>(random_bits(7, 1, i / 128) % static_cast<unsigned>(exponents));
    out[i] = std::ldexp(2 * random_unit(7, 0, i) - 1, exponent + lowest);
  }
  return out;
}
Values wide(std::size_t n) { return scattered(n, -40, 60); }
Values narrow(std::size_t n) { return scattered(n, -33, 35); }
Values coarse(std::size_t n) {
  Values out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = (static_cast<float>(random_bits(7, 2, i) % 33) - 16) / 16;
  return out;
}

struct Pinned {
  CodecSpec spec;
  Values (*input)(std::size_t);
  std::size_t elements;
  const char* digest;
};
const Pinned pinned[] = {
#include "pinned_digests.inc"
};

TEST(CodecLayout, PinnedDigests) {
  constexpr Noise noise{.key = 0x0123456789abcdef, .first_element = 8192};
  for (const auto& p : pinned)
    EXPECT_EQ(hash_of(encoded(p.spec, p.input(p.elements), noise)).hex(), p.digest)
        << p.spec << ", " << p.elements << " elements";
}

}  // namespace
}  // namespace isthmus::quant
