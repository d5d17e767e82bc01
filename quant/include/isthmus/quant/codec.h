#pragma once
// Codecs convert a run of fp32 values to bytes and back. Encoded bytes are agreed state: for one CodecSpec
// and one input they are the same on every CPU and GPU. Arithmetic is fp32 with one rounding per operation
// and no fused multiply-add. docs/numerics.md describes the formats and the measurements behind the defaults.
// The passes that use the codecs are in passes.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace isthmus::quant {

// Another block size of a codec may be enough: `3bit` with outer.codec_block 32 has 3.5 bits. To add one:
//   1. An enumerator at the end (logs store its number), `codec_kinds`, and a row of `codecs`. The keys
//      outer.codec and outer.warmup_codec, `isthmus plan`, `isthmus selftest` and most tests read that table.
//   2. For levels times a scale: the levels in formats.h, and a line of `with_format` (arithmetic-inl.h), for
//      CPUs and GPUs. For codes that do not fill bytes evenly see what formats.h, blocks-inl.h and
//      cuda/block_kernels-inl.h do where `bits` is 3.
//   3. Another layout also needs `encode_as` and `decode_as` (passes-inl.h), kernels and their launches
//      (cuda/kernels-inl.h), and its size and checks in codec.cpp (`encoded_size`, `valid`, `unit_of`,
//      `joins`).
//   4. Known results: `known_digest` in app/model/selftest_codecs.cpp; tests/quant/codec_layout_test.cpp and
//      pinned_digests.py; KINDS and BITS in tests/fuzz/write_corpus.py.
//   5. docs/numerics.md and docs/config.md.

/// Layouts (little-endian; n elements). The block formats, from int8 to sign, are ceil(n/block) scales, then
/// codes. A block's scale is its largest magnitude times `clip`, divided by 127 (int8), 7 (int4) or 1, in the
/// scale's format; a decoded value is level * scale. Codes are in groups of 16 bytes: with c bits each, byte
/// j of a group holds the codes of elements j, 16 + j, 32 + j, ... of 128/c elements, from the low bits up.
/// The last group is padded as if zeros followed. A code has its sign in the top bit and below it the index
/// of its level, counted from the smallest magnitude.
enum class CodecKind : std::uint8_t {
  fp32,  ///< n x fp32. 32 bits per element.
  bf16,  ///< n x bfloat16. 16 bits.
  int8,  ///< levels 0 to 127. 8 bits, plus the scale's.
  int4,  ///< levels 0 to 7. 4 bits, plus the scale's.
  e3m0,  ///< levels 0, 2^-6, 2^-5, ... 1: Streaming DiLoCo's format (arXiv 2501.18512, section 3.3). 4 bits.
  lloyd4,  ///< "4bit": eight levels fitted to bell-shaped blocks (Lloyd 1982, "Least squares quantization in
           ///< PCM"). 4 bits.
  lloyd3,  ///< "3bit": four fitted levels. A group is 48 bytes for 128 elements: level indices of the first
           ///< and of the second 64 as 2-bit codes, then the signs as 1-bit codes. 3 bits.
  lloyd2,  ///< "2bit": two fitted levels. 2 bits.
  sign,    ///< only the sign; the scale is the block's mean magnitude, from sixteen sums added in order (with
           ///< stochastic rounding, the largest magnitude). 1 bit.
  /// The largest of every 4096 elements, as in SparseLoCo (arXiv 2508.15706), without `scale` and `clip`: per
  /// piece of m <= 4096 a bf16 scale, ceil(top_k m / 4096) positions of 12 bits in ascending order, two in
  /// three bytes, and as many codes of 2 bits, the first in the lowest bits. .223 bits at top_k = 64.
  topk,
};
/// Number of kinds.
inline constexpr std::size_t codec_kinds = static_cast<std::size_t>(CodecKind::topk) + 1;

enum class CodecLayout : std::uint8_t {
  floats,  ///< one float for each element
  blocks,  ///< scales, then codes
  pieces,  ///< the largest elements of each piece
};
struct Codec {
  CodecKind kind;
  std::string_view name;
  std::string_view stored_name;  ///< in checkpoints and in what members compare: never changes
  CodecLayout layout;
  int bits;             ///< of a code
  std::uint32_t block;  ///< the default: a measured one, for blocks
};
/// In the order of the enumerators.
inline constexpr std::array<Codec, codec_kinds> codecs = {{
    {CodecKind::fp32, "fp32", "fp32", CodecLayout::floats, 32, 64},
    {CodecKind::bf16, "bf16", "bf16", CodecLayout::floats, 16, 64},
    {CodecKind::int8, "int8", "int8", CodecLayout::blocks, 8, 128},
    {CodecKind::int4, "int4", "int4", CodecLayout::blocks, 4, 64},
    {CodecKind::e3m0, "e3m0", "e3m0", CodecLayout::blocks, 4, 64},
    {CodecKind::lloyd4, "4bit", "lloyd4", CodecLayout::blocks, 4, 64},
    {CodecKind::lloyd3, "3bit", "lloyd3", CodecLayout::blocks, 3, 64},
    {CodecKind::lloyd2, "2bit", "lloyd2", CodecLayout::blocks, 2, 128},
    {CodecKind::sign, "sign", "sign", CodecLayout::blocks, 1, 128},
    {CodecKind::topk, "topk", "topk", CodecLayout::pieces, 2, 64},
}};
[[nodiscard]] constexpr const Codec& codec_of(CodecKind kind) {
  return codecs[static_cast<std::size_t>(kind)];  // NOLINT(cppcoreguidelines-pro-bounds-constant-array-index)
}
inline constexpr auto codec_names = [] {
  std::array<std::string_view, codec_kinds> names;
  for (std::size_t i = 0; i < codec_kinds; ++i) names[i] = codecs[i].name;
  return names;
}();
static_assert([] {
  for (std::size_t i = 0; i < codec_kinds; ++i)
    if (static_cast<std::size_t>(codecs[i].kind) != i) return false;
  return true;
}());
[[nodiscard]] std::string_view to_string(CodecKind kind);
/// The codec of a name or a stored name. Throws Error(config) for any other text.
[[nodiscard]] CodecKind codec_kind(std::string_view name);

/// Storage format of a block's scale. A block below the smallest scale counts as zero.
enum class ScaleFormat : std::uint8_t {
  bf16,  ///< 16 bits, 2^-120 to 2^120
  e5m3,  ///< 8 bits, unsigned: 2^-28 to 14 in steps of an eighth; for values known to stay within
  e8m0,  ///< 8 bits, powers of two from 2^-120 to 2^120
};
inline constexpr std::string_view scale_names[] = {"bf16", "e5m3", "e8m0"};
[[nodiscard]] std::string_view to_string(ScaleFormat format);
/// Throws Error(config) for any other name.
[[nodiscard]] ScaleFormat scale_format(std::string_view name);

enum class Rounding : std::uint8_t {
  nearest,     ///< a tie goes to the larger magnitude; int8, int4 and bf16: to even
  stochastic,  ///< to one of the two neighbours, so that the expectation is the value (unless it was clipped)
};

struct CodecSpec {
  CodecKind kind = CodecKind::lloyd4;
  std::uint32_t block = 64;  ///< elements that share a scale: a power of two from 16 to 4096
  ScaleFormat scale = ScaleFormat::bf16;
  float clip = 1;  ///< .01 to 1: value of the largest level, as a share of the block's largest magnitude
  Rounding rounding = Rounding::nearest;
  std::uint32_t top_k = 64;  ///< only for topk: elements kept of every 4096
  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};
/// The measured defaults of a kind (docs/numerics.md).
[[nodiscard]] CodecSpec default_spec(CodecKind kind);
/// Why the spec is invalid; empty if it is valid.
[[nodiscard]] std::string problem_of(const CodecSpec& spec);

/// A run may be split after any multiple of this number of elements; its parts then have the same encodings.
[[nodiscard]] std::uint32_t unit_of(const CodecSpec& spec);

/// Whether a long run may be encoded in parts of this number of elements: its encoding is then the parts'
/// scales in order, followed by the parts' codes in order.
[[nodiscard]] bool joins(const CodecSpec& spec, std::size_t elements);

/// Number of bytes at the front of an encoded run that are scales; their distribution differs from the
/// codes'.
[[nodiscard]] std::size_t scale_part(const CodecSpec& spec, std::size_t elements);
/// Exact size in bytes of `elements` values encoded.
[[nodiscard]] std::size_t encoded_size(const CodecSpec& spec, std::size_t elements);
/// Bits per element, scales included, for long runs.
[[nodiscard]] double bits_per_element(const CodecSpec& spec);

}  // namespace isthmus::quant
