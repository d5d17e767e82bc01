#pragma once
// The formats' levels, scales and sizes: constants and integer arithmetic shared by the CPU's and the GPU's
// passes. The arithmetic on values is in arithmetic-inl.h.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "isthmus/quant/codec.h"

#ifdef __CUDACC__
#define ISTHMUS_HOST_DEVICE __host__ __device__
#else
#define ISTHMUS_HOST_DEVICE
#endif

namespace isthmus::quant {

// fp32 bit patterns. Magnitudes compare like integers, and NaN and infinity compare largest: one integer
// maximum over a block gives its absmax and finds values that are not finite.
inline constexpr std::uint32_t magnitude_mask = 0x7fffffff;
inline constexpr std::uint32_t sign_mask = 0x80000000;
inline constexpr std::uint32_t infinity_bits = 0x7f800000;
inline constexpr std::uint32_t largest_bf16_bits = 0x7f7f0000;

// ---- packing ----

inline constexpr std::size_t row = 16;             ///< elements of a row, and bytes of a packed row
inline constexpr std::size_t largest_group = 128;  ///< elements of the longest group of codes
inline constexpr std::size_t piece = 4096;         ///< elements from which topk chooses
inline constexpr std::uint32_t smallest_block = 16;
inline constexpr std::uint32_t largest_block = 4096;

/// Rows of elements in one group of codes: the fewest that fill whole bytes.
ISTHMUS_HOST_DEVICE constexpr std::size_t group_rows(int bits) {
  return bits == 3 ? 8 : 8U / static_cast<unsigned>(bits);
}
/// Bytes of a group.
ISTHMUS_HOST_DEVICE constexpr std::size_t group_bytes(int bits) { return bits == 3 ? 3 * row : row; }

// ---- levels ----
// A table format's values are +-levels[i] * scale. A block's largest magnitude is scaled to `unit`.

struct Int8 {  // evenly spaced levels need no table
  static constexpr int bits = 8;
  static constexpr float unit = 127;
};
struct Int4 {
  static constexpr int bits = 4;
  static constexpr float unit = 7;
};
struct E3m0 {
  static constexpr int bits = 4;
  static constexpr float unit = 1;
  static constexpr float levels[] = {0, 0x1p-6F, 0x1p-5F, 0x1p-4F, 0x1p-3F, 0x1p-2F, 0x1p-1F, 1};
};
// Lloyd's algorithm on blocks of 64 Gaussian values; each block is divided by its largest magnitude and
// weighted with the square of it (tests/quant/lloyd_levels.py). Rounded to 512ths, so that a level times a
// bf16 or 8-bit scale is exact in fp32.
struct Lloyd4 {
  static constexpr int bits = 4;
  static constexpr float unit = 1;
  static constexpr float levels[] = {24 / 512.F,  73 / 512.F,  124 / 512.F, 178 / 512.F,
                                     238 / 512.F, 307 / 512.F, 392 / 512.F, 1};
};
struct Lloyd3 {
  static constexpr int bits = 3;
  static constexpr float unit = 1;
  static constexpr float levels[] = {47 / 512.F, 146 / 512.F, 262 / 512.F, 425 / 512.F};
};
struct Lloyd2 {
  static constexpr int bits = 2;
  static constexpr float unit = 1;
  static constexpr float levels[] = {89 / 512.F, 301 / 512.F};
};
struct Sign {
  static constexpr int bits = 1;
  static constexpr float unit = 1;
  static constexpr float levels[] = {1};
};
/// topk's levels, fitted likewise to the 64 largest of 4096 Gaussian values, divided by the largest.
struct TopkLevels {
  static constexpr int bits = 2;
  static constexpr float unit = 1;
  static constexpr float levels[] = {340 / 512.F, 424 / 512.F};
};
template <class T>
inline constexpr std::size_t level_count = sizeof(T::levels) / sizeof(float);
/// The smallest magnitude for which level I is the nearest; exact.
template <class T, std::size_t I>
inline constexpr float threshold = (T::levels[I - 1] + T::levels[I]) / 2;

/// Adding 1.5 * 2^23 leaves no bits for a fraction, so the addition itself rounds to the nearest integer,
/// ties to even, and the low bits of the sum are that integer.
inline constexpr float rounder = 12582912.0F;

// ---- scales ----
// Rounding can make a scale smaller than the exact quotient, which puts the largest value past the last
// level: it still gets the last code. Values are multiplied by 1 / scale, with one rounding there and one in
// the product: a value within 2^-22 of a threshold may fall on either side of it, but on the same side
// everywhere. Scales are never so small that a decoded value or 1 / scale could be denormal or infinite.

/// Upper half of an fp32, rounded to nearest even.
ISTHMUS_HOST_DEVICE constexpr std::uint32_t to_bf16(std::uint32_t bits) {
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

ISTHMUS_HOST_DEVICE constexpr std::size_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::bf16 ? 2 : 1;
}
struct ScaleRange {
  std::uint32_t smallest, largest;  ///< codes other than 0, which means a block of zeros
};
ISTHMUS_HOST_DEVICE constexpr ScaleRange scale_range(ScaleFormat format) {
  if (format == ScaleFormat::bf16) return {0x0380, 0x7b80};  // 2^-120, 2^120
  if (format == ScaleFormat::e5m3) return {1, 255};          // 2^-28, 14
  return {7, 247};                                           // 2^-120, 2^120
}
/// e5m3 code 1 is 2^-28: exponent 99 of fp32, mantissa 0.
inline constexpr std::uint32_t e5m3_bias = (99 << 3) - 1;

ISTHMUS_HOST_DEVICE constexpr std::uint32_t scale_bits(ScaleFormat format, std::uint32_t code) {
  if (code == 0) return 0;
  if (format == ScaleFormat::bf16) return code << 16;
  if (format == ScaleFormat::e5m3) return (code + e5m3_bias) << 20;
  return code << 23;
}
/// The nearest code for a scale with these bits, before clamping to the format's range.
ISTHMUS_HOST_DEVICE constexpr std::int64_t nearest_scale(ScaleFormat format, std::uint32_t bits) {
  if (format == ScaleFormat::bf16) return to_bf16(bits);
  if (format == ScaleFormat::e5m3) return static_cast<std::int64_t>((bits + 0x80000) >> 20) - e5m3_bias;
  return (bits + (0x00800000 - 0x003504f3)) >> 23;  // rounds up from the square root of two
}
inline constexpr std::uint32_t no_scale = 0xffffffff;
/// The code for a block with a largest magnitude of `absmax_bits` and a wanted scale of `wanted_bits`;
/// no_scale if that scale is too large for the format.
ISTHMUS_HOST_DEVICE constexpr std::uint32_t scale_code(ScaleFormat format, std::uint32_t absmax_bits,
                                                       std::uint32_t wanted_bits) {
  const auto range = scale_range(format);
  if (absmax_bits < scale_bits(format, range.smallest)) return 0;
  const auto code = nearest_scale(format, wanted_bits);
  if (code > static_cast<std::int64_t>(range.largest)) return no_scale;
  return code < static_cast<std::int64_t>(range.smallest) ? range.smallest : static_cast<std::uint32_t>(code);
}
ISTHMUS_HOST_DEVICE constexpr bool scale_is_valid(ScaleFormat format, std::uint32_t code) {
  const auto range = scale_range(format);
  return code == 0 || (code >= range.smallest && code <= range.largest);
}

// ---- topk ----

/// Elements kept of a piece of m elements.
ISTHMUS_HOST_DEVICE constexpr std::size_t kept_of(std::size_t top_k, std::size_t m) {
  return (top_k * m + piece - 1) / piece;
}
ISTHMUS_HOST_DEVICE constexpr std::size_t positions_bytes(std::size_t kept) { return (kept * 12 + 7) / 8; }
ISTHMUS_HOST_DEVICE constexpr std::size_t piece_bytes(std::size_t kept) {
  return 2 + positions_bytes(kept) + (kept + 3) / 4;
}

}  // namespace isthmus::quant
