// Sizes, accuracy, refusals.

#include "isthmus/quant/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "codec_support.h"
#include "isthmus/base/error.h"

namespace isthmus::quant {
namespace {

constexpr auto infinity = std::numeric_limits<float>::infinity();
constexpr auto largest = std::numeric_limits<float>::max();

double relative_rmse(const CodecSpec& spec, const Values& x) {
  auto bytes = buffer(spec, x.size());
  Values y(x.size());
  EXPECT_TRUE(encode(spec, x, {}, bytes));
  EXPECT_TRUE(decode(spec, bytes, y));
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    power += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / power);
}

/// Puts `bits` in place of the only scale of one block of zeros with a single non-zero code, and decodes.
bool decodes_with_scale(CodecKind kind, std::uint16_t bits) {
  const CodecSpec spec{kind, 16};
  auto bytes = buffer(spec, 16);
  Values x(16, 0.0F);
  x[3] = 1;
  EXPECT_TRUE(encode(spec, x, {}, bytes));
  std::memcpy(bytes.data(), &bits, 2);
  return decode(spec, bytes, x);
}

TEST(Codec, NamesRoundTripAndUnknownOnesAreListed) {
  for (const auto kind : all_kinds) EXPECT_EQ(codec_kind(to_string(kind)), kind);
  try {
    static_cast<void>(codec_kind("int5"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("int5"), testing::HasSubstr("e3m0")));
  }
}

TEST(Codec, SizesCountScalesAndPartialBlocks) {
  EXPECT_EQ(encoded_size({CodecKind::fp32}, 5), 20U);
  EXPECT_EQ(encoded_size({CodecKind::bf16}, 5), 10U);
  EXPECT_EQ(encoded_size({CodecKind::int8, 16}, 33), 3U * 2 + 33);
  EXPECT_EQ(encoded_size({CodecKind::int4, 16}, 33), 3U * 2 + 17);
  EXPECT_EQ(encoded_size({CodecKind::e3m0, 64}, 64), 2U + 32);
  for (const auto kind : all_kinds) EXPECT_EQ(encoded_size({kind}, 0), 0U);
  EXPECT_DOUBLE_EQ(bits_per_element({CodecKind::int4, 128}), 4.125);
  EXPECT_DOUBLE_EQ(bits_per_element({CodecKind::int8, 64}), 8.25);
  EXPECT_DOUBLE_EQ(bits_per_element({CodecKind::bf16, 64}), 16);
}

TEST(Codec, NothingIsAValidRun) {
  for (const auto kind : all_kinds) {
    EXPECT_TRUE(encode({kind}, {}, {}, {}));
    EXPECT_TRUE(decode({kind}, {}, {}));
    EXPECT_TRUE(decode_accumulate({kind}, {}, 1, {}));
  }
}

TEST(Codec, GaussianErrorIsWhatTheFormatAllows) {
  const auto x = gaussian(1 << 16, 3, 1e-3F);
  EXPECT_NEAR(relative_rmse({CodecKind::int4, 128}, x), 0.116, 0.005);
  EXPECT_NEAR(relative_rmse({CodecKind::int8, 128}, x), 0.006, 0.0005);
  EXPECT_NEAR(relative_rmse({CodecKind::e3m0, 128}, x), 0.18, 0.02);
  EXPECT_LT(relative_rmse({CodecKind::bf16}, x), 0.003);
  EXPECT_EQ(relative_rmse({CodecKind::fp32}, x), 0);
}

TEST(Codec, WhatIsNotFiniteIsRefused) {
  for (const auto kind : all_kinds) {
    for (const float bad :
         {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
          -std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN()}) {
      for (const std::size_t where : {0, 17, 150}) {
        Values x(151, 0.5F);
        x[where] = bad;
        auto bytes = buffer({kind, 16}, x.size());
        EXPECT_FALSE(encode({kind, 16}, x, {}, bytes)) << to_string(kind) << " " << bad << " at " << where;
      }
    }
  }
}

TEST(Codec, SumsAndQuotientsThatOverflowAreRefused) {
  for (const auto kind : all_kinds) {
    const CodecSpec spec{kind, 16};
    const Values x(20, largest);
    const Values y(20, -largest);
    const Values zero(20, 0.0F);
    Values residual(20, largest);
    auto bytes = buffer(spec, x.size());
    EXPECT_FALSE(encode(spec, x, residual, bytes));
    EXPECT_FALSE(encode_difference(spec, x, y, {}, bytes));
    EXPECT_FALSE(encode_quotient(spec, x, 0.5F, {}, bytes));
    EXPECT_FALSE(encode_quotient(spec, zero, 0, {}, bytes));
  }
}

TEST(Codec, LargestValuesAreKeptOrRefused) {
  for (const auto kind : all_kinds) {
    const CodecSpec spec{kind, 16};
    const Values x(16, largest);
    auto bytes = buffer(spec, 16);
    // bf16 cannot hold the largest fp32 and e3m0's scale is the largest value; the integers' scales are
    // smaller.
    const bool fits = kind != CodecKind::bf16 && kind != CodecKind::e3m0;
    EXPECT_EQ(encode(spec, x, {}, bytes), fits) << to_string(kind);
    Values y(16);
    if (fits) {
      EXPECT_TRUE(decode(spec, bytes, y)) << to_string(kind);
    }
  }
}

TEST(Codec, TinyValuesGiveZeroOrTheSmallestScale) {
  for (const auto kind : scaled_kinds) {
    for (const float tiny : {std::numeric_limits<float>::denorm_min(), 0x1p-126F, 0x1p-121F, 0x1.8p-120F}) {
      Values x(16, tiny);
      x[1] = -tiny;
      auto bytes = buffer({kind, 16}, 16);
      Values y(16);
      ASSERT_TRUE(encode({kind, 16}, x, {}, bytes));
      ASSERT_TRUE(decode({kind, 16}, bytes, y)) << to_string(kind) << " " << tiny;
      EXPECT_EQ(scale_of(bytes, 0), tiny < 0x1p-120F ? 0 : std::max(0x1p-120F, scale_of(bytes, 0)));
      for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_LE(std::abs(x[i] - y[i]), 0x1p-120F);
        EXPECT_TRUE(y[i] == 0 || std::isnormal(y[i]));
      }
    }
  }
}

TEST(Codec, DecodersRefuseScalesThatNoEncoderWrites) {
  constexpr std::uint16_t infinite = 0x7f80, nan = 0x7fc0, negative = 0xbf80, minus_zero = 0x8000,
                          denormal = 0x0001, below_smallest = 0x037f, one = 0x3f80;
  for (const auto kind : scaled_kinds) {
    for (const auto scale : {infinite, nan, negative, minus_zero, denormal, below_smallest}) {
      EXPECT_FALSE(decodes_with_scale(kind, scale)) << to_string(kind) << " " << scale;
    }
    EXPECT_TRUE(decodes_with_scale(kind, one));
    EXPECT_FALSE(decodes_with_scale(kind, 0)) << "a zero scale with a code that is not zero";
  }
  // The largest scales whose largest code is finite.
  EXPECT_TRUE(std::isfinite(7 * bf16_value(0x7e12)) && !std::isfinite(7 * bf16_value(0x7e13)));
  EXPECT_TRUE(decodes_with_scale(CodecKind::int4, 0x7e12));
  EXPECT_FALSE(decodes_with_scale(CodecKind::int4, 0x7e13));
  EXPECT_TRUE(std::isfinite(127 * bf16_value(0x7c01)) && !std::isfinite(127 * bf16_value(0x7c02)));
  EXPECT_TRUE(decodes_with_scale(CodecKind::int8, 0x7c01));
  EXPECT_FALSE(decodes_with_scale(CodecKind::int8, 0x7c02));
  EXPECT_TRUE(decodes_with_scale(CodecKind::e3m0, 0x7f7f));
}

TEST(Codec, DecodersRefuseCodesThatNoEncoderWrites) {
  for (const auto& [kind, code] : {std::pair{CodecKind::int8, 0x80},
                                   {CodecKind::int4, 0x01},
                                   {CodecKind::int4, 0x10},
                                   {CodecKind::e3m0, 0x81},
                                   {CodecKind::e3m0, 0x18}}) {
    const CodecSpec spec{kind, 16};
    const Values x(40, 1.0F);
    auto bytes = buffer(spec, x.size());
    ASSERT_TRUE(encode(spec, x, {}, bytes));
    Values y(x.size());
    EXPECT_TRUE(decode(spec, bytes, y));
    bytes[bytes.size() - 2] = static_cast<std::byte>(code);
    EXPECT_FALSE(decode(spec, bytes, y)) << to_string(kind) << " " << code;
    EXPECT_FALSE(decode_accumulate(spec, bytes, 1, y)) << to_string(kind) << " " << code;
  }
}

TEST(Codec, DecodersRefuseAnUnusedHalfByteThatIsNotZero) {
  for (const auto kind : {CodecKind::int4, CodecKind::e3m0}) {
    const CodecSpec spec{kind, 16};
    const Values x(17, 1.0F);
    auto bytes = buffer(spec, x.size());
    ASSERT_TRUE(encode(spec, x, {}, bytes));
    bytes.back() |= std::byte{0x90};
    Values y(x.size());
    EXPECT_FALSE(decode(spec, bytes, y));
  }
}

TEST(Codec, DecodersRefuseTheWrongNumberOfBytes) {
  for (const auto kind : all_kinds) {
    const CodecSpec spec{kind, 16};
    Values y(33);
    for (const int wrong : {-1, 1, 2}) {
      const Encoded bytes(encoded_size(spec, y.size()) + wrong);
      EXPECT_FALSE(decode(spec, bytes, y));
      EXPECT_FALSE(decode_accumulate(spec, bytes, 1, y));
    }
    EXPECT_FALSE(decode(spec, {}, y));
  }
}

TEST(Codec, DecodersOfPlainFormatsRefuseWhatIsNotFinite) {
  Values y(3);
  Values x = {1, infinity, 2};
  Encoded bytes(12);
  std::memcpy(bytes.data(), x.data(), 12);
  EXPECT_FALSE(decode({CodecKind::fp32}, bytes, y));
  const std::uint16_t halves[] = {0x3f80, 0x3f80, 0x7fc0};
  bytes.resize(6);
  std::memcpy(bytes.data(), halves, 6);
  EXPECT_FALSE(decode({CodecKind::bf16}, bytes, y));
}

// With error feedback what is lost in one round is sent in later ones: sums of what was sent follow sums of
// what was meant to be sent, however coarse the format.
TEST(Codec, ErrorFeedbackLosesNothingInTheLongRun) {
  const CodecSpec spec{CodecKind::e3m0, 64};
  const std::size_t n = 1000;
  Values residual(n, 0.0F);
  Values sent(n, 0.0F);
  std::vector<double> meant(n, 0.0);
  auto bytes = buffer(spec, n);
  for (unsigned round = 0; round < 50; ++round) {
    const auto x = gaussian(n, round);
    for (std::size_t i = 0; i < n; ++i) meant[i] += x[i];
    ASSERT_TRUE(encode(spec, x, residual, bytes));
    ASSERT_TRUE(decode_accumulate(spec, bytes, 1, sent));
  }
  for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(sent[i] + residual[i], meant[i], 1e-4);
}

}  // namespace
}  // namespace isthmus::quant
