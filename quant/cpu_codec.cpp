// Plain loops in the shape compilers vectorise: a block is gathered into a buffer that stays in the
// first-level cache, and each step of the format is one loop over it.

#include "cpu_codec.h"

#include <algorithm>
#include <cstring>

#include "formats.h"

namespace isthmus::quant::cpu {
namespace {

/// Elements at a time for the formats without blocks.
constexpr std::size_t piece = 1024;

/// Bits of the largest magnitude of n values. Sixteen maxima side by side: one would be a chain of dependent
/// operations.
std::uint32_t absmax(const float* v, std::size_t n) {
  constexpr std::size_t lanes = 16;
  std::int32_t largest[lanes] = {};  // signed: SSE2 compares only signed integers
  const auto magnitude = [v](std::size_t i) {
    return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(v[i]) & magnitude_mask);
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane)
      largest[lane] = std::max(largest[lane], magnitude(i + lane));
  }
  for (; i < n; ++i) largest[0] = std::max(largest[0], magnitude(i));
  return static_cast<std::uint32_t>(*std::max_element(largest, largest + lanes));
}

template <class Value>
std::uint32_t gather(const float* residual, std::size_t n, float* __restrict v, Value value) {
  if (residual != nullptr) {
    for (std::size_t i = 0; i < n; ++i) v[i] = value(i) + residual[i];
  } else {
    for (std::size_t i = 0; i < n; ++i) v[i] = value(i);
  }
  return absmax(v, n);
}

/// Elements [begin, begin + n) of the input into v. Returns the bits of the largest magnitude.
std::uint32_t load(const Input& input, std::size_t begin, std::size_t n, float* v) {
  const float* a = input.a + begin;
  const float* residual = input.residual == nullptr ? nullptr : input.residual + begin;
  switch (input.kind) {
    case Input::Kind::difference: {
      const float* b = input.b + begin;
      return gather(residual, n, v, [=](std::size_t i) { return a[i] - b[i]; });
    }
    case Input::Kind::quotient: {
      const float divisor = input.divisor;
      return gather(residual, n, v, [=](std::size_t i) { return a[i] / divisor; });
    }
    case Input::Kind::plain:
      break;
  }
  return gather(residual, n, v, [=](std::size_t i) { return a[i]; });
}

std::size_t packed_size(bool nibbles, std::size_t n) { return nibbles ? (n + 1) / 2 : n; }

/// codes has room for one more than n: the unused half of the last byte is the code of zero.
template <class F>
void pack(std::uint8_t* codes, std::size_t n, std::byte* __restrict out) {
  if constexpr (!F::nibbles) {
    std::memcpy(out, codes, n);
  } else {
    codes[n] = F::zero;
    const auto bytes = packed_size(true, n);
    for (std::size_t i = 0; i < bytes; ++i) {
      out[i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

template <class F>
void unpack(const std::byte* __restrict in, std::size_t n, std::uint8_t* __restrict codes) {
  if constexpr (!F::nibbles) {
    std::memcpy(codes, in, n);
  } else {
    const auto bytes = packed_size(true, n);
    for (std::size_t i = 0; i < bytes; ++i) {
      const auto byte = static_cast<std::uint8_t>(in[i]);
      codes[2 * i] = byte & 15;
      codes[2 * i + 1] = byte >> 4;
    }
  }
}

template <class F>
void quantise(const float* __restrict v, std::size_t n, float scale, std::uint8_t* __restrict codes) {
  const float in_scales = inverse(scale);
  for (std::size_t i = 0; i < n; ++i) codes[i] = F::code(v[i] * in_scales);
}

template <class F>
void keep_residual(const float* __restrict v, const std::uint8_t* __restrict codes, std::size_t n,
                   float scale, float* __restrict residual) {
  for (std::size_t i = 0; i < n; ++i) residual[i] = v[i] - F::value(codes[i], scale);
}

template <class F>
bool encode_blocks(const Input& input, std::size_t block, std::byte* out) {
  float v[largest_block];
  std::uint8_t codes[largest_block + 1];
  std::byte* scales = out;
  std::byte* packed = out + (input.elements + block - 1) / block * 2;
  for (std::size_t begin = 0; begin < input.elements; begin += block) {
    const auto n = std::min(block, input.elements - begin);
    const auto absmax_bits = load(input, begin, n, v);
    if (absmax_bits >= infinity_bits) return false;
    const auto stored = block_scale<F>(absmax_bits);
    if (stored > F::largest_scale) return false;
    std::memcpy(scales, &stored, 2);
    const auto scale = std::bit_cast<float>(from_bf16(stored));
    quantise<F>(v, n, scale, codes);
    pack<F>(codes, n, packed);
    if (input.residual != nullptr) keep_residual<F>(v, codes, n, scale, input.residual + begin);
    scales += 2;
    packed += packed_size(F::nibbles, n);
  }
  return true;
}

/// Whether an encoder may have written this block; `n` includes the unused half of a last byte.
template <class F>
bool written_by_encoder(std::uint16_t scale, const std::uint8_t* codes, std::size_t n) {
  std::uint8_t wrong = 0;
  if (scale == 0) {
    for (std::size_t i = 0; i < n; ++i) wrong |= codes[i] ^ F::zero;
  } else {
    for (std::size_t i = 0; i < n; ++i) wrong |= static_cast<std::uint8_t>(F::invalid(codes[i]));
  }
  return wrong == 0 && (scale == 0 || (scale >= smallest_scale && scale <= F::largest_scale));
}

/// Calls use(first element, number, codes, scale) for each block.
template <class F, class Use>
bool decode_blocks(const std::byte* in, std::size_t elements, std::size_t block, Use use) {
  std::uint8_t codes[largest_block + 1];
  const std::byte* scales = in;
  const std::byte* packed = in + (elements + block - 1) / block * 2;
  for (std::size_t begin = 0; begin < elements; begin += block) {
    const auto n = std::min(block, elements - begin);
    std::uint16_t stored = 0;
    std::memcpy(&stored, scales, 2);
    unpack<F>(packed, n, codes);
    const bool half_used = F::nibbles && n % 2 == 1;
    if (half_used && codes[n] != F::zero) return false;
    if (!written_by_encoder<F>(stored, codes, n)) return false;
    use(begin, n, codes, std::bit_cast<float>(from_bf16(stored)));
    scales += 2;
    packed += packed_size(F::nibbles, n);
  }
  return true;
}

template <class F>
bool decode_values(const std::byte* in, std::size_t elements, std::size_t block, float* out) {
  return decode_blocks<F>(in, elements, block,
                          [out](std::size_t begin, std::size_t n, const std::uint8_t* codes, float scale) {
                            float* __restrict to = out + begin;
                            for (std::size_t i = 0; i < n; ++i) to[i] = F::value(codes[i], scale);
                          });
}

template <class F>
bool accumulate_values(const std::byte* in, std::size_t elements, std::size_t block, float weight,
                       float* sum) {
  return decode_blocks<F>(in, elements, block,
                          [=](std::size_t begin, std::size_t n, const std::uint8_t* codes, float scale) {
                            float* __restrict to = sum + begin;
                            for (std::size_t i = 0; i < n; ++i) to[i] += weight * F::value(codes[i], scale);
                          });
}

// fp32 and bf16: no scales, so a piece is as good as a block.

bool encode_fp32(const Input& input, std::byte* out) {
  float v[piece];
  for (std::size_t begin = 0; begin < input.elements; begin += piece) {
    const auto n = std::min(piece, input.elements - begin);
    if (load(input, begin, n, v) >= infinity_bits) return false;
    std::memcpy(out + begin * 4, v, n * 4);
    if (input.residual != nullptr) std::fill_n(input.residual + begin, n, 0.0F);
  }
  return true;
}

bool encode_bf16(const Input& input, std::byte* out) {
  float v[piece];
  std::uint16_t codes[piece];
  for (std::size_t begin = 0; begin < input.elements; begin += piece) {
    const auto n = std::min(piece, input.elements - begin);
    if (load(input, begin, n, v) >= bf16_overflow_bits) return false;
    for (std::size_t i = 0; i < n; ++i) codes[i] = to_bf16(std::bit_cast<std::uint32_t>(v[i]));
    std::memcpy(out + begin * 2, codes, n * 2);
    if (input.residual == nullptr) continue;
    float* __restrict residual = input.residual + begin;
    for (std::size_t i = 0; i < n; ++i) residual[i] = v[i] - std::bit_cast<float>(from_bf16(codes[i]));
  }
  return true;
}

/// Calls use(first element, number, values) for each piece; Width is 4 for fp32, 2 for bf16.
template <std::size_t Width, class Use>
bool decode_pieces(const std::byte* in, std::size_t elements, Use use) {
  float v[piece];
  for (std::size_t begin = 0; begin < elements; begin += piece) {
    const auto n = std::min(piece, elements - begin);
    if constexpr (Width == 4) {
      std::memcpy(v, in + begin * 4, n * 4);
    } else {
      std::uint16_t codes[piece];
      std::memcpy(codes, in + begin * 2, n * 2);
      for (std::size_t i = 0; i < n; ++i) v[i] = std::bit_cast<float>(from_bf16(codes[i]));
    }
    if (absmax(v, n) >= infinity_bits) return false;
    use(begin, n, static_cast<const float*>(v));
  }
  return true;
}

template <std::size_t Width>
bool copy_values(const std::byte* in, std::size_t elements, float* out) {
  return decode_pieces<Width>(in, elements, [=](std::size_t begin, std::size_t n, const float* v) {
    std::memcpy(out + begin, v, n * 4);
  });
}

template <std::size_t Width>
bool add_values(const std::byte* in, std::size_t elements, float weight, float* sum) {
  return decode_pieces<Width>(in, elements, [=](std::size_t begin, std::size_t n, const float* v) {
    float* __restrict to = sum + begin;
    for (std::size_t i = 0; i < n; ++i) to[i] += weight * v[i];
  });
}

}  // namespace

bool encode(const CodecSpec& spec, const Input& input, std::byte* out) {
  switch (spec.kind) {
    case CodecKind::fp32:
      return encode_fp32(input, out);
    case CodecKind::bf16:
      return encode_bf16(input, out);
    case CodecKind::int8:
      return encode_blocks<Int8>(input, spec.block, out);
    case CodecKind::int4:
      return encode_blocks<Int4>(input, spec.block, out);
    case CodecKind::e3m0:
      return encode_blocks<E3m0>(input, spec.block, out);
  }
  return false;
}

bool decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements) {
  switch (spec.kind) {
    case CodecKind::fp32:
      return copy_values<4>(in, elements, out);
    case CodecKind::bf16:
      return copy_values<2>(in, elements, out);
    case CodecKind::int8:
      return decode_values<Int8>(in, elements, spec.block, out);
    case CodecKind::int4:
      return decode_values<Int4>(in, elements, spec.block, out);
    case CodecKind::e3m0:
      return decode_values<E3m0>(in, elements, spec.block, out);
  }
  return false;
}

bool decode_accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum,
                       std::size_t elements) {
  switch (spec.kind) {
    case CodecKind::fp32:
      return add_values<4>(in, elements, weight, sum);
    case CodecKind::bf16:
      return add_values<2>(in, elements, weight, sum);
    case CodecKind::int8:
      return accumulate_values<Int8>(in, elements, spec.block, weight, sum);
    case CodecKind::int4:
      return accumulate_values<Int4>(in, elements, spec.block, weight, sum);
    case CodecKind::e3m0:
      return accumulate_values<E3m0>(in, elements, spec.block, weight, sum);
  }
  return false;
}

}  // namespace isthmus::quant::cpu
