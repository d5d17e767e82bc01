#pragma once
// Codecs: a run of fp32 values to bytes and back. Encoded bytes are agreed state: for one CodecSpec and one
// input they are the same on every machine. Arithmetic is fp32 with one rounding per operation, no fused
// multiply-add, blocks in order. docs/numerics.md describes the formats; each one's layout stands beside its
// enumerator.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace isthmus::quant {

/// A block's scale is its largest magnitude divided by the largest code (127, 7; 1 for e3m0) in fp32, rounded
/// to the nearest bf16, and at least 2^-120; it is 0, and so are all codes, if that magnitude is below
/// 2^-120. A code is the nearest to value * (1 / scale), ties to even (e3m0: to the larger level). The unused
/// half of a last byte holds the code of zero.
///
/// Layouts (little-endian; n elements, b = block; a last block may be shorter; scales come first, in block
/// order):
enum class CodecKind : std::uint8_t {
  fp32,  ///< n x fp32. 32 bits per element.
  bf16,  ///< n x bfloat16, round to nearest even. 16 bits.
  int8,  ///< ceil(n/b) x bf16 scale, n x int8 in [-127, 127]; value = code * scale. 8 + 16/b bits.
  int4,  ///< ceil(n/b) x bf16 scale, ceil(n/2) bytes, element 2i in the low nibble; code in [-7, 7] stored as
         ///< code + 8 (1..15; 0 is invalid); value = code * scale. 4 + 16/b bits.
  e3m0,  ///< ceil(n/b) x bf16 scale, nibbles as int4: bit 3 sign, bits 0-2 exponent e; value = 0 if
         ///< e = 0, else +-scale * 2^(e-7). 4 + 16/b bits. Streaming DiLoCo's format (arXiv 2501.18512,
         ///< section 3.3).
};

struct CodecSpec {
  CodecKind kind = CodecKind::int4;
  std::uint32_t block = 128;  ///< elements that share a scale; even, 16 to 4096; unused by fp32 and bf16
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

inline constexpr std::string_view codec_names[] = {"fp32", "bf16", "int8", "int4", "e3m0"};
[[nodiscard]] std::string_view to_string(CodecKind kind);
/// Throws Error(config) for any other name.
[[nodiscard]] CodecKind codec_kind(std::string_view name);

/// Exact size in bytes of `elements` values encoded.
[[nodiscard]] std::size_t encoded_size(const CodecSpec& spec, std::size_t elements);
/// Bits per element, scales included, for long runs.
[[nodiscard]] double bits_per_element(const CodecSpec& spec);

// The passes. Each reads every operand once. `residual` is either empty (no error feedback) or as long as the
// input: it is added to the input before encoding and replaced by (input + residual) - decoded. `out` must be
// encoded_size long. They return false, with `out` and `residual` in an unspecified state, if a value to
// encode is not finite or is too large for the format's scale.

/// x
[[nodiscard]] bool encode(const CodecSpec& spec, std::span<const float> x, std::span<float> residual,
                          std::span<std::byte> out);
/// minuend - subtrahend: an outer gradient, global minus local parameters.
[[nodiscard]] bool encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                                     std::span<const float> subtrahend, std::span<float> residual,
                                     std::span<std::byte> out);
/// sum / divisor: the mean of contributions.
[[nodiscard]] bool encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                                   std::span<float> residual, std::span<std::byte> out);

// Decoders take bytes from the network. They return false, with `out` unspecified, if `in` has not exactly
// encoded_size bytes, holds a code that no encoder writes, or decodes to a value that is not finite.

[[nodiscard]] bool decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out);
/// sum[i] = sum[i] + weight * value[i], two roundings.
[[nodiscard]] bool decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                                     std::span<float> sum);

}  // namespace isthmus::quant
