// Names, sizes, accuracy, and refused inputs.

#include "isthmus/quant/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "codec_support.h"
#include "isthmus/base/error.h"

namespace isthmus::quant {
namespace {

double relative_rmse(const CodecSpec& spec, const Values& x) {
  auto bytes = buffer(spec, x.size());
  Values y(x.size());
  EXPECT_FALSE(encode(spec, x, {}, {}, bytes));
  EXPECT_TRUE(decode(spec, bytes, y));
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    power += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / power);
}

/// Checks that every decoder refuses these bytes and writes nothing.
void expect_refused(const CodecSpec& spec, const Encoded& bytes, std::size_t n, const char* why) {
  const Values before(n, 3.0F);
  auto a = before;
  auto b = before;
  auto c = before;
  EXPECT_FALSE(valid(spec, bytes, n)) << spec << ": " << why;
  EXPECT_FALSE(decode(spec, bytes, a)) << spec << ": " << why;
  EXPECT_EQ(a, before) << spec << ": " << why;
  EXPECT_FALSE(decode_accumulate(spec, bytes, 1, a)) << spec << ": " << why;
  EXPECT_EQ(a, before) << spec << ": " << why;
  EXPECT_FALSE(decode_apply(spec, bytes, {}, a, b, c)) << spec << ": " << why;
  EXPECT_TRUE(a == before && b == before && c == before) << spec << ": " << why;
}

/// Bytes of n values of 1; `code` replaces the last block's scale.
Encoded with_last_scale(const CodecSpec& spec, std::size_t n, std::uint32_t code) {
  auto bytes = buffer(spec, n);
  EXPECT_FALSE(encode(spec, Values(n, 1.0F), {}, {}, bytes));
  const auto size = scale_bytes(spec.scale);
  std::memcpy(bytes.data() + (blocks_of(spec, n) - 1) * size, &code, size);
  return bytes;
}

TEST(Codec, NamesRoundTripAndUnknownOnesAreListed) {
  for (const auto kind : all_kinds) {
    EXPECT_EQ(codec_kind(to_string(kind)), kind);
    EXPECT_EQ(codec_kind(codec_of(kind).stored_name), kind);
  }
  EXPECT_EQ(to_string(codec_kind("lloyd4")), "4bit");
  for (const auto scale : all_scales) EXPECT_EQ(scale_format(to_string(scale)), scale);
  try {
    static_cast<void>(codec_kind("int5"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("int5"), testing::HasSubstr("e3m0")));
  }
  EXPECT_THROW(static_cast<void>(scale_format("e4m3")), Error);
}

TEST(Codec, SpecsThatNoCodecHasAreNamed) {
  for (const auto kind : all_kinds) EXPECT_EQ(problem_of(default_spec(kind)), "");
  for (const std::uint32_t block : {0U, 8U, 48U, 8192U})
    EXPECT_THAT(problem_of({.block = block}), testing::HasSubstr("block"));
  for (const float clip : {0.0F, -1.0F, 1.5F, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_THAT(problem_of({.clip = clip}), testing::HasSubstr("clip"));
  for (const std::uint32_t top_k : {0U, 4097U})
    EXPECT_THAT(problem_of({.top_k = top_k}), testing::HasSubstr("top_k"));
}

TEST(Codec, SizesCountScalesPartialBlocksAndWholeGroups) {
  EXPECT_EQ(encoded_size({.kind = CodecKind::fp32}, 5), 20U);
  EXPECT_EQ(encoded_size({.kind = CodecKind::bf16}, 5), 10U);
  EXPECT_EQ(encoded_size({.kind = CodecKind::int8, .block = 16}, 33), 3U * 2 + 48);
  EXPECT_EQ(encoded_size({.kind = CodecKind::int4, .block = 16}, 33), 3U * 2 + 32);
  EXPECT_EQ(encoded_size({.kind = CodecKind::e3m0}, 64), 2U + 32);
  EXPECT_EQ(encoded_size({.kind = CodecKind::lloyd4, .scale = ScaleFormat::e5m3}, 65), 2U + 48);
  EXPECT_EQ(encoded_size({.kind = CodecKind::lloyd3}, 129), 3U * 2 + 96);
  EXPECT_EQ(encoded_size({.kind = CodecKind::lloyd2}, 65), 2U * 2 + 32);
  EXPECT_EQ(encoded_size({.kind = CodecKind::sign, .scale = ScaleFormat::e8m0}, 129), 3U + 32);
  EXPECT_EQ(encoded_size({.kind = CodecKind::topk}, 4096), 2U + 96 + 16);
  // For the last element: a scale, 12 bits in two bytes, 2 bits in one byte.
  EXPECT_EQ(encoded_size({.kind = CodecKind::topk}, 4097), 114U + 5);
  for (const auto kind : all_kinds) EXPECT_EQ(encoded_size({.kind = kind}, 0), 0U);
}

TEST(Codec, PartsThatJoinAreTheEncodingOfTheWhole) {
  const auto values = gaussian(3 * 4096 + 100, 3);
  int joined = 0;
  for (const auto kind : all_kinds) {
    for (const auto rounding : all_roundings) {
      for (const std::size_t part : {16, 32, 48, 64, 112, 128, 192, 4096}) {
        auto spec = default_spec(kind);
        if (kind != CodecKind::fp32) spec.rounding = rounding;
        if (!joins(spec, part)) continue;
        ++joined;
        auto whole = buffer(spec, values.size());
        ASSERT_FALSE(encode(spec, values, {}, {.key = 7}, whole));
        Encoded scales, codes;
        for (std::size_t begin = 0; begin < values.size(); begin += part) {
          const auto size = std::min(part, values.size() - begin);
          auto bytes = buffer(spec, size);
          const Noise noise{.key = 7, .first_element = begin};
          ASSERT_FALSE(encode(spec, std::span(values).subspan(begin, size), {}, noise, bytes));
          const auto code = bytes.begin() + static_cast<std::ptrdiff_t>(scale_part(spec, size));
          scales.insert(scales.end(), bytes.begin(), code);
          codes.insert(codes.end(), code, bytes.end());
        }
        scales.insert(scales.end(), codes.begin(), codes.end());
        ASSERT_EQ(scales, whole) << text_of(spec) << " in parts of " << part;
      }
    }
  }
  EXPECT_GT(joined, 40);
  EXPECT_FALSE(joins({.kind = CodecKind::lloyd4, .block = 16}, 48)) << "a group has 32 elements";
  EXPECT_FALSE(joins({.kind = CodecKind::sign, .block = 16}, 112)) << "a group has 128";
}

TEST(Codec, BitsPerElement) {
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::bf16}), 16);
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::int8}), 8.25);
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::int4, .block = 128}), 4.125);
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::lloyd3, .scale = ScaleFormat::e5m3}), 3.125);
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::sign, .block = 128}), 1.125);
  EXPECT_DOUBLE_EQ(bits_per_element({.kind = CodecKind::topk}), 114 * 8 / 4096.0);
}

TEST(Codec, NothingIsAValidRun) {
  for (const auto kind : all_kinds) {
    EXPECT_FALSE(encode({.kind = kind}, {}, {}, {}, {}));
    EXPECT_TRUE(decode({.kind = kind}, {}, {}));
    EXPECT_TRUE(decode_accumulate({.kind = kind}, {}, 1, {}));
    EXPECT_TRUE(decode_apply({.kind = kind}, {}, {}, {}, {}, {}));
  }
}

TEST(Codec, GaussianErrorIsWhatTheFormatAllows) {
  const auto x = gaussian(1 << 16, 3, 1e-3F);
  EXPECT_EQ(relative_rmse({.kind = CodecKind::fp32}, x), 0);
  EXPECT_LT(relative_rmse({.kind = CodecKind::bf16}, x), 0.003);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::int8, .block = 128}, x), 0.006, 0.0005);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::int4, .block = 128}, x), 0.116, 0.005);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::e3m0, .block = 128}, x), 0.18, 0.02);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::lloyd4}, x), 0.089, 0.001);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::lloyd3}, x), 0.177, 0.002);
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::lloyd2}, x), 0.343, 0.002);
  // The optimum for one bit: sqrt(1 - 2 / pi).
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::sign, .block = 4096}, x), 0.603, 0.003);
  // The largest 64 of 4096 have about a tenth of the power of Gaussian values.
  EXPECT_NEAR(relative_rmse({.kind = CodecKind::topk}, x), 0.94, 0.003);
}

TEST(Codec, TheFirstElementThatIsNotFiniteIsNamed) {
  for (const auto kind : all_kinds) {
    for (const float bad :
         {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
          -std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN()}) {
      for (const std::size_t where : {0, 17, 150}) {
        Values x(151, 0.5F);
        x[where] = bad;
        x[150] = bad;
        const CodecSpec spec{.kind = kind, .block = 16};
        auto bytes = buffer(spec, x.size());
        EXPECT_EQ(encode(spec, x, {}, {}, bytes), where) << spec << " " << bad;
      }
    }
  }
}

TEST(Codec, SumsAndQuotientsThatOverflowAreNamed) {
  constexpr std::size_t where = 18;
  Values x(20, 1.0F);
  Values y(20, 1.0F);
  const Values zero(20, 0.0F);
  Values residual(20, 0.0F);
  x[where] = residual[where] = largest;
  y[where] = -largest;
  for (const auto kind : all_kinds) {
    const CodecSpec spec{.kind = kind, .block = 16};
    auto bytes = buffer(spec, x.size());
    auto carried = residual;
    EXPECT_EQ(encode(spec, x, {carried, 1}, {}, bytes), where) << spec;
    EXPECT_EQ(encode_difference(spec, x, y, {}, {}, bytes), where) << spec;
    EXPECT_EQ(encode_quotient(spec, x, 0.5F, {}, {}, bytes), where) << spec;
    EXPECT_EQ(encode_quotient(spec, zero, 0, {}, {}, bytes), 0U) << spec;
  }
}

TEST(Codec, WhatIsTooLargeForTheScaleIsNamed) {
  constexpr std::size_t where = 21;
  for (const auto kind : block_kinds) {
    for (const auto scale : all_scales) {
      const CodecSpec spec{.kind = kind, .block = 16, .scale = scale};
      const float largest_value = unit_level(kind) * (scale == ScaleFormat::e5m3 ? 14.0F : 0x1p120F);
      Values x(40, 0.0F);
      auto bytes = buffer(spec, x.size());
      // The scale of a block of signs is the mean of its magnitudes.
      if (kind == CodecKind::sign) std::fill_n(x.begin() + 16, 16, largest_value);
      x[where] = largest_value;
      EXPECT_FALSE(encode(spec, x, {}, {}, bytes)) << spec;
      Values y(x.size());
      EXPECT_TRUE(decode(spec, bytes, y)) << spec;
      EXPECT_EQ(y[where], levels_of(kind).back() * (largest_value / unit_level(kind))) << spec;
      for (auto& v : x) v *= 1.5F;
      x[where] = std::nextafter(x[where], infinity);
      EXPECT_EQ(encode(spec, x, {}, {}, bytes), where) << spec;
    }
  }
}

TEST(Codec, LargestValuesOfFormatsWithoutBlocks) {
  const Values x{1, largest};
  Encoded bytes(8);
  EXPECT_FALSE(encode({.kind = CodecKind::fp32}, x, {}, {}, bytes));
  for (const auto rounding : all_roundings) {
    const CodecSpec spec{.kind = CodecKind::bf16, .rounding = rounding};
    bytes.resize(4);
    const float last = bf16_value(0x7f7f);
    EXPECT_EQ(encode(spec, Values{1, std::nextafter(last, infinity)}, {}, {}, bytes), 1U);
    EXPECT_FALSE(encode(spec, Values{1, -last}, {}, {}, bytes));
  }
  const CodecSpec topk{.kind = CodecKind::topk};
  bytes = buffer(topk, 2);
  EXPECT_FALSE(encode(topk, Values{1, 0x1p120F}, {}, {}, bytes));
  EXPECT_EQ(encode(topk, Values{1, 0x1.02p120F}, {}, {}, bytes), 1U);
}

TEST(Codec, TinyValuesGiveZeroOrTheSmallestScale) {
  for (const auto kind : block_kinds) {
    for (const auto format : {ScaleFormat::bf16, ScaleFormat::e8m0}) {
      for (const float tiny : {std::numeric_limits<float>::denorm_min(), 0x1p-126F, 0x1p-121F, 0x1p-120F}) {
        const CodecSpec spec{.kind = kind, .block = 16, .scale = format};
        Values x(16, tiny);
        x[1] = -tiny;
        auto bytes = buffer(spec, 16);
        Values y(16);
        ASSERT_FALSE(encode(spec, x, {}, {}, bytes));
        ASSERT_TRUE(decode(spec, bytes, y)) << spec << " " << tiny;
        EXPECT_EQ(scale_of(spec, bytes, 0), tiny < 0x1p-120F ? 0 : 0x1p-120F) << spec << " " << tiny;
        for (std::size_t i = 0; i < 16; ++i) {
          EXPECT_LE(std::abs(x[i] - y[i]), 0x1p-120F) << spec;
          EXPECT_TRUE(y[i] == 0 || std::isnormal(y[i])) << spec;
        }
      }
    }
  }
}

TEST(Codec, DecodersRefuseScalesThatNoEncoderWrites) {
  constexpr std::uint32_t infinite = 0x7f80, nan = 0x7fc0, negative = 0xbf80, minus_zero = 0x8000,
                          denormal = 0x0001, below_smallest = 0x037f, above_largest = 0x7b81;
  for (const auto kind : block_kinds) {
    const CodecSpec spec{.kind = kind, .block = 16};
    for (const auto code : {infinite, nan, negative, minus_zero, denormal, below_smallest, above_largest})
      expect_refused(spec, with_last_scale(spec, 35, code), 35, "scale");
    for (const std::uint32_t code : {0x0000U, 0x0380U, 0x3f80U, 0x7b80U})
      EXPECT_TRUE(valid(spec, with_last_scale(spec, 35, code), 35)) << spec << " " << code;
    const CodecSpec powers{.kind = kind, .block = 16, .scale = ScaleFormat::e8m0};
    for (const std::uint32_t code : {1U, 6U, 248U, 255U})
      expect_refused(powers, with_last_scale(powers, 35, code), 35, "scale");
    for (const std::uint32_t code : {0U, 7U, 247U})
      EXPECT_TRUE(valid(powers, with_last_scale(powers, 35, code), 35)) << powers << " " << code;
    const CodecSpec small{.kind = kind, .block = 16, .scale = ScaleFormat::e5m3};
    for (std::uint32_t code = 0; code < 256; ++code)
      EXPECT_TRUE(valid(small, with_last_scale(small, 35, code), 35)) << small << " " << code;
  }
}

TEST(Codec, AllCodesDecode) {
  for (const auto kind : block_kinds) {
    const CodecSpec spec{.kind = kind, .block = 16};
    Values y(130);
    for (int byte = 0; byte < 256; ++byte) {
      auto bytes = buffer(spec, y.size());
      ASSERT_FALSE(encode(spec, Values(y.size(), 1.0F), {}, {}, bytes));
      std::fill(bytes.begin() + 2 * 9, bytes.end(), static_cast<std::byte>(byte));
      ASSERT_TRUE(decode(spec, bytes, y)) << spec << " " << byte;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const auto scale = scale_of(spec, bytes, i / 16);
        ASSERT_EQ(y[i], value_of(kind, code_at(spec, bytes, y.size(), i), scale)) << spec << " " << byte;
      }
    }
  }
}

/// A piece of topk made by hand: two positions of 600 elements at top_k = 8.
Encoded two_kept(unsigned first, unsigned second) {
  const auto low = static_cast<std::byte>(first & 0xff);
  const auto middle = static_cast<std::byte>(first >> 8 | (second & 0xf) << 4);
  return {std::byte{0x80}, std::byte{0x3f}, low, middle, static_cast<std::byte>(second >> 4), std::byte{0x4}};
}

TEST(Codec, TopkDecodersRefusePositionsThatNoEncoderWrites) {
  const CodecSpec spec{.kind = CodecKind::topk, .top_k = 8};
  constexpr std::size_t n = 600;
  ASSERT_EQ(encoded_size(spec, n), 6U);
  EXPECT_TRUE(valid(spec, two_kept(0, 1), n));
  EXPECT_TRUE(valid(spec, two_kept(598, 599), n));
  expect_refused(spec, two_kept(5, 5), n, "twice the same");
  expect_refused(spec, two_kept(6, 5), n, "descending");
  expect_refused(spec, two_kept(5, 600), n, "past the end");
  expect_refused(spec, two_kept(4095, 0), n, "past the end");
  auto bad_scale = two_kept(0, 1);
  bad_scale[1] = std::byte{0xbf};
  expect_refused(spec, bad_scale, n, "a negative scale");
  Values y(n);
  ASSERT_TRUE(decode(spec, two_kept(3, 400), y));
  EXPECT_EQ(y[3], TopkLevels::levels[0]);
  EXPECT_EQ(y[400], TopkLevels::levels[1]);
  EXPECT_EQ(std::count(y.begin(), y.end(), 0.0F), static_cast<std::ptrdiff_t>(n) - 2);
}

TEST(Codec, TopkKeepsTheFirstOfEqualOnes) {
  const CodecSpec spec{.kind = CodecKind::topk, .top_k = 16};
  Values x(1024, 0.25F);  // keeps four
  x[700] = -1;
  x[900] = 1;
  auto bytes = buffer(spec, x.size());
  ASSERT_FALSE(encode(spec, x, {}, {}, bytes));
  Values y(x.size());
  ASSERT_TRUE(decode(spec, bytes, y));
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(y[i] != 0, i == 0 || i == 1 || i == 700 || i == 900) << i;
  EXPECT_EQ(y[700], -TopkLevels::levels[1]);
}

TEST(Codec, DecodersRefuseTheWrongNumberOfBytes) {
  for (const auto kind : all_kinds) {
    const CodecSpec spec{.kind = kind, .block = 16};
    for (const int wrong : {-1, 1, 2})
      expect_refused(spec, Encoded(encoded_size(spec, 33) + static_cast<std::size_t>(wrong)), 33, "size");
    expect_refused(spec, {}, 33, "size");
  }
}

TEST(Codec, DecodersOfPlainFormatsRefuseWhatIsNotFinite) {
  const Values x = {1, infinity, 2};
  Encoded bytes(12);
  std::memcpy(bytes.data(), x.data(), 12);
  expect_refused({.kind = CodecKind::fp32}, bytes, 3, "infinity");
  const std::uint16_t halves[] = {0x3f80, 0x3f80, 0x7fc0};
  bytes.resize(6);
  std::memcpy(bytes.data(), halves, 6);
  expect_refused({.kind = CodecKind::bf16}, bytes, 3, "NaN");
}

}  // namespace
}  // namespace isthmus::quant
