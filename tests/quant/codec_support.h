#pragma once
// Helpers shared by the codec tests: inputs, and a simple reader of encoded bytes written after codec.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats.h"
#include "isthmus/quant/codec.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {

inline constexpr auto infinity = std::numeric_limits<float>::infinity();
inline constexpr auto largest = std::numeric_limits<float>::max();

using Values = std::vector<float>;
using Encoded = std::vector<std::byte>;

inline constexpr auto all_kinds = [] {
  std::array<CodecKind, codec_kinds> kinds;
  std::ranges::transform(codecs, kinds.begin(), &Codec::kind);
  return kinds;
}();
inline bool has_blocks(CodecKind kind) { return codec_of(kind).layout == CodecLayout::blocks; }
inline const auto block_kinds = [] {
  std::vector<CodecKind> kinds;
  std::ranges::copy_if(all_kinds, std::back_inserter(kinds), has_blocks);
  return kinds;
}();
inline constexpr ScaleFormat all_scales[] = {ScaleFormat::bf16, ScaleFormat::e5m3, ScaleFormat::e8m0};
inline constexpr Rounding all_roundings[] = {Rounding::nearest, Rounding::stochastic};

inline std::string text_of(const CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + " clip " + std::to_string(spec.clip) +
         (spec.rounding == Rounding::nearest ? " nearest" : " stochastic") + " top_k " +
         std::to_string(spec.top_k);
}
inline std::ostream& operator<<(std::ostream& out, const CodecSpec& spec) { return out << text_of(spec); }

/// A buffer of the exact size, so that AddressSanitizer detects writes past its end.
inline Encoded buffer(const CodecSpec& spec, std::size_t elements) {
  return Encoded(encoded_size(spec, elements));
}

inline Encoded encoded(const CodecSpec& spec, std::span<const float> x, const Noise& noise = {}) {
  auto out = buffer(spec, x.size());
  EXPECT_FALSE(encode(spec, x, {}, noise, out)) << spec;
  return out;
}

inline Values gaussian(std::size_t n, unsigned seed, float deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  Values out(n);
  for (auto& x : out) x = normal(engine);
  return out;
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline float bf16_value(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// ---- bytes of the block formats ----

/// Levels from the smallest up.
inline Values levels_of(CodecKind kind) {
  const auto table = [](const auto& levels) { return Values(std::begin(levels), std::end(levels)); };
  Values even(kind == CodecKind::int8 ? 128 : 8);
  std::iota(even.begin(), even.end(), 0.0F);
  switch (kind) {
    case CodecKind::fp32:  // floats have no levels: any values
    case CodecKind::bf16:
    case CodecKind::int8:
    case CodecKind::int4:
      return even;
    case CodecKind::e3m0:
      return table(E3m0::levels);
    case CodecKind::lloyd4:
      return table(Lloyd4::levels);
    case CodecKind::lloyd3:
      return table(Lloyd3::levels);
    case CodecKind::lloyd2:
      return table(Lloyd2::levels);
    case CodecKind::sign:
      return table(Sign::levels);
    case CodecKind::topk:
      return table(TopkLevels::levels);
  }
  throw std::logic_error("a codec without known levels");
}
inline float unit_level(CodecKind kind) {
  if (kind == CodecKind::int8) return 127;
  return kind == CodecKind::int4 ? 7 : 1;
}

inline std::size_t blocks_of(const CodecSpec& spec, std::size_t n) {
  return (n + spec.block - 1) / spec.block;
}

inline float scale_of(const CodecSpec& spec, const Encoded& encoded, std::size_t block) {
  std::uint32_t code = 0;
  const auto size = scale_bytes(spec.scale);
  std::memcpy(&code, encoded.data() + block * size, size);
  return std::bit_cast<float>(scale_bits(spec.scale, code));
}

/// The code of element i of n.
inline std::uint32_t code_at(const CodecSpec& spec, const Encoded& encoded, std::size_t n, std::size_t i) {
  const auto bits = static_cast<std::size_t>(codec_of(spec.kind).bits);
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(encoded[at]); };
  const std::size_t in_group = bits == 3 ? 128 : 128 / bits;
  const auto group = blocks_of(spec, n) * scale_bytes(spec.scale) + i / in_group * (bits == 3 ? 48 : 16);
  const auto at_row = i % in_group / 16;
  const auto at = group + i % 16;
  if (bits != 3) return byte(at) >> (bits * at_row) & ((1U << bits) - 1);
  return (byte(at + 16 * (at_row / 4)) >> (2 * (at_row % 4)) & 3) | (byte(at + 32) >> at_row & 1) << 2;
}

inline float value_of(CodecKind kind, std::uint32_t code, float scale) {
  const auto sign = code >> (codec_of(kind).bits - 1);
  const auto level = levels_of(kind)[code & ((1U << (codec_of(kind).bits - 1)) - 1)];
  return std::copysign(level, sign != 0 ? -1.0F : 1.0F) * scale;
}

}  // namespace isthmus::quant
