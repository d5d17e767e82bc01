#pragma once
// What the codec tests share.

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "isthmus/quant/codec.h"

namespace isthmus::quant {

using Values = std::vector<float>;
using Encoded = std::vector<std::byte>;

inline constexpr CodecKind all_kinds[] = {CodecKind::fp32, CodecKind::bf16, CodecKind::int8, CodecKind::int4,
                                          CodecKind::e3m0};
inline constexpr CodecKind scaled_kinds[] = {CodecKind::int8, CodecKind::int4, CodecKind::e3m0};

/// Exactly as long as it must be, so that AddressSanitizer sees every byte too far.
inline Encoded buffer(const CodecSpec& spec, std::size_t elements) {
  return Encoded(encoded_size(spec, elements));
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

inline float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The stored scale of block `index`.
inline float scale_of(const Encoded& encoded, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, encoded.data() + 2 * index, 2);
  return bf16_value(bits);
}

}  // namespace isthmus::quant
