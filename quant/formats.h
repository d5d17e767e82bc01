#pragma once
// The formats' arithmetic, one element or one block at a time: what every implementation of the codecs
// (plain, vectorised, CUDA) must give bit for bit. Nothing here depends on the machine: integer operations
// and single fp32 operations that IEEE 754 rounds to nearest even.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace isthmus::quant {

inline constexpr std::uint32_t largest_block = 4096;
inline constexpr std::uint32_t smallest_block = 16;

// fp32 bit patterns. Magnitudes compare like integers, and what is not finite is the largest of all: one
// integer maximum over a block gives its absmax and finds NaN and infinity.
inline constexpr std::uint32_t magnitude_mask = 0x7fffffff;
inline constexpr std::uint32_t infinity_bits = 0x7f800000;

/// Upper half of an fp32, rounded to nearest even; of finite values the largest become infinity.
constexpr std::uint16_t to_bf16(std::uint32_t bits) {
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
constexpr std::uint32_t from_bf16(std::uint16_t bits) { return static_cast<std::uint32_t>(bits) << 16; }
/// The first fp32 magnitude that to_bf16 takes to infinity.
inline constexpr std::uint32_t bf16_overflow_bits = 0x7f7f8000;

// Scales. A block's scale is absmax / F::levels, rounded to the nearest bf16. That may be below the exact
// quotient by one part in 512, which takes the largest value to at most levels * 512/511 < levels + 1/2: it
// still rounds to the last code, so nothing is clipped and no clamp is needed.
// Below 2^-120 a block counts as zero and a scale is raised to 2^-120. Then every value that is decoded is
// zero or normal, 1 / scale is finite, and a thread that flushes denormals to zero writes the same bytes.
inline constexpr std::uint16_t smallest_scale = 0x0380;  // 2^-120

/// The stored scale for a block whose largest magnitude has these bits (finite): 0 for a block that counts as
/// zero. It may exceed F::largest_scale.
template <class F>
constexpr std::uint16_t block_scale(std::uint32_t absmax_bits) {
  if (absmax_bits < from_bf16(smallest_scale)) return 0;
  const auto quotient = std::bit_cast<float>(absmax_bits) / F::levels;
  return std::max(smallest_scale, to_bf16(std::bit_cast<std::uint32_t>(quotient)));
}
/// What values are multiplied with to be counted in scales. One rounding here and one in the product: a value
/// within 2^-22 of the middle between two codes may take either, the same one everywhere.
constexpr float inverse(float scale) { return scale > 0 ? 1.0F / scale : 0.0F; }

// Adding 1.5 * 2^23 leaves no bits for a fraction, so the addition itself rounds to the nearest integer, ties
// to even, and the low bits of the sum are that integer in two's complement.
inline constexpr float rounder = 12582912.0F;

// A format: codes of one block from its values times 1/scale, and values from codes. `code` is only called
// with magnitudes of at most levels * 512/511.

struct Int8 {
  static constexpr float levels = 127;
  static constexpr std::uint16_t largest_scale = 0x7c01;  // 127 times the next is infinite
  static constexpr std::uint8_t zero = 0;
  static constexpr bool nibbles = false;
  static std::uint8_t code(float in_scales) {
    return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(in_scales + rounder));
  }
  static float value(std::uint8_t code, float scale) {
    return static_cast<float>(static_cast<std::int8_t>(code)) * scale;  // 7 + 8 bits: exact
  }
  static bool invalid(std::uint8_t code) { return code == 0x80; }
};

struct Int4 {
  static constexpr float levels = 7;
  static constexpr std::uint16_t largest_scale = 0x7e12;  // 7 times the next is infinite
  static constexpr std::uint8_t zero = 8;
  static constexpr bool nibbles = true;
  static std::uint8_t code(float in_scales) {
    return std::bit_cast<std::uint32_t>(in_scales + (rounder + 8)) & 15;
  }
  static float value(std::uint8_t code, float scale) {
    return static_cast<float>(static_cast<int>(code) - 8) * scale;  // 3 + 8 bits: exact
  }
  static bool invalid(std::uint8_t code) { return code == 0; }
};

struct E3m0 {
  static constexpr float levels = 1;
  static constexpr std::uint16_t largest_scale = 0x7f7f;  // the largest bf16
  static constexpr std::uint8_t zero = 0;
  static constexpr bool nibbles = true;
  static constexpr std::uint32_t smallest_level = (127 - 6) << 23;  // 2^-6: e = 1
  static constexpr std::uint32_t half_of_it = (127 - 7) << 23;      // below it the nearest level is 0
  /// The nearest level; half-way between two, the larger.
  static std::uint8_t code(float in_scales) {
    const auto bits = std::bit_cast<std::uint32_t>(in_scales);
    const auto magnitude = bits & magnitude_mask;
    // A mantissa of 1.5 or more carries into the exponent.
    const auto exponent = (std::max(magnitude, smallest_level) + 0x00400000) >> 23;
    const auto code = (exponent - 120) | ((bits >> 28) & 8);
    return static_cast<std::uint8_t>(magnitude < half_of_it ? 0 : code);
  }
  static float value(std::uint8_t code, float scale) {
    const std::uint32_t e = code & 7;
    const auto level = e == 0 ? 0 : (e + 120) << 23 | static_cast<std::uint32_t>(code & 8) << 28;
    return std::bit_cast<float>(level) * scale;  // a power of two: exact
  }
  static bool invalid(std::uint8_t code) { return code == 8; }  // minus zero
};

}  // namespace isthmus::quant
