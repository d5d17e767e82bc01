// The formats byte for byte: what another implementation must write.

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

Encoded encoded(const CodecSpec& spec, const Values& x) {
  auto out = buffer(spec, x.size());
  EXPECT_TRUE(encode(spec, x, {}, out));
  return out;
}

TEST(CodecLayout, Fp32IsTheValuesLittleEndian) {
  EXPECT_EQ(encoded({CodecKind::fp32}, {1.0F, -2.5F}), bytes({0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0}));
}

TEST(CodecLayout, Bf16RoundsToNearestEven) {
  // 1 + 2^-8 is half-way between 0x3f80 and 0x3f81, 1 + 3 * 2^-8 half-way between 0x3f81 and 0x3f82.
  const Values x = {1.0F + 0x1p-8F, 1.0F + 0x3p-8F, 1.0F + 0x1.0002p-8F, -0.0F};
  EXPECT_EQ(encoded({CodecKind::bf16}, x), bytes({0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f, 0x00, 0x80}));
}

TEST(CodecLayout, Int8) {
  // absmax 127, so the scale is 1 (0x3f80). Ties go to even.
  Values x(16, 0.0F);
  x[0] = 127;
  x[1] = -127;
  x[2] = 0.5F;
  x[3] = 1.5F;
  x[4] = -2.5F;
  x[5] = 99.4F;
  Encoded expected = bytes({0x80, 0x3f, 127, 0x81, 0, 2, 0xfe, 99});
  expected.resize(2 + 16);
  EXPECT_EQ(encoded({CodecKind::int8, 16}, x), expected);
}

TEST(CodecLayout, Int4ScalesFirstThenNibblesLowHalfFirst) {
  // 19 elements in blocks of 16: scales 1 (0x3f80) and 2 (0x4000), both before all codes.
  const Values x = {7, -7, 0.5F, 1.5F, -2.5F, 3.49F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 14, -2, 5};
  const auto expected =
      bytes({0x80, 0x3f, 0x00, 0x40,                          //
             0x1f, 0xa8, 0xb6, 0x88, 0x88, 0x88, 0x88, 0x98,  //
             0x7f, 0x8a});  // 5 / 2 = 2.5 rounds to 2; the unused half holds the code of zero
  EXPECT_EQ(encoded({CodecKind::int4, 16}, x), expected);
}

TEST(CodecLayout, E3m0) {
  // Scale 8 (0x4100); levels 8, 4, 2, 1, .5, .25, .125 are e = 7 .. 1.
  const Values x = {8, -8,    4,  -2,      1,       0.5F,   -0.25F, 0.125F,  //
                    6, 5.99F, -3, 0.0625F, 0.0624F, -0.01F, 0,      -0.0F,  /*next block*/ 0.25F};
  const auto expected =
      bytes({0x00, 0x41, 0x80, 0x3e,          //
             0xf7, 0xd6, 0x34, 0x1a,          //
             0x67, 0x1e, 0x00, 0x00, 0x07});  // half-way goes up: 6 to 8, -3 to -4, 1/16 to 1/8
  EXPECT_EQ(encoded({CodecKind::e3m0, 16}, x), expected);
  Values y(x.size());
  ASSERT_TRUE(decode({CodecKind::e3m0, 16}, expected, y));
  EXPECT_EQ(y, (Values{8, -8, 4, -2, 1, 0.5F, -0.25F, 0.125F, 8, 4, -4, 0.125F, 0, 0, 0, 0, 0.25F}));
}

TEST(CodecLayout, AllZeroBlockHasScaleZeroAndZeroCodes) {
  const Values x(17, 0.0F);
  EXPECT_EQ(encoded({CodecKind::int8, 16}, x), Encoded(4 + 17));
  EXPECT_EQ(encoded({CodecKind::e3m0, 16}, x), Encoded(4 + 9));
  auto expected = Encoded(4 + 9, std::byte{0x88});
  std::fill_n(expected.begin(), 4, std::byte{0});
  EXPECT_EQ(encoded({CodecKind::int4, 16}, x), expected);
}

/// Values of many magnitudes, block by block, with a partial block and an odd count at the end.
Values pinned_input() {
  Values out(128 * 9 + 37);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto exponent = static_cast<int>(random_bits(7, 1, i / 128) % 60) - 40;
    out[i] = std::ldexp(2 * random_unit(7, 0, i) - 1, exponent);
  }
  return out;
}

// Digests printed by pinned_digests.py, which has exact fractions where the codecs have tricks.
TEST(CodecLayout, PinnedDigests) {
  const auto x = pinned_input();
  const auto digest = [&](CodecKind kind) { return hash_of(encoded({kind, 128}, x)).hex(); };
  EXPECT_EQ(digest(CodecKind::fp32), "fe2c0216d1e99f250548388aa6625eafbf7d23a945496b37730b5e00d111167d");
  EXPECT_EQ(digest(CodecKind::bf16), "95ee47e3fa4f1853b9a82605ecb731e22731e7ac46e91d559aeccc5ed391836a");
  EXPECT_EQ(digest(CodecKind::int8), "551f2d8b365705a64c2b2b35a40df748724f7979d62fdf3268e6b40a0771e3ec");
  EXPECT_EQ(digest(CodecKind::int4), "08544755a003e60902f95ddfda537a4f8c2be53a46a4ca5ec81d897a500b480d");
  EXPECT_EQ(digest(CodecKind::e3m0), "48a29ddd3989d0924ac45c91ef435271d240687c20c3f2520e0553b2c2600539");
}

}  // namespace
}  // namespace isthmus::quant
