// Names and sizes of the codecs, and the checks before a pass.

#include "isthmus/quant/codec.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>

#include "formats.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"
#include "passes_table.h"

namespace isthmus::quant {
namespace {

template <class Names>
std::size_t index_of(const Names& names, std::string_view name, const char* what) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found != std::end(names)) return static_cast<std::size_t>(found - std::begin(names));
  std::string message = "unknown " + std::string(what) + " \"" + std::string(name) + "\", expected one of";
  for (const auto known : names) message.append(" ").append(known);
  throw Error(ErrorKind::config, message);
}

bool has_blocks(CodecKind kind) { return codec_of(kind).layout == CodecLayout::blocks; }

std::size_t blocks_of(const CodecSpec& spec, std::size_t elements) {
  return (elements + spec.block - 1) / spec.block;
}

}  // namespace

std::string_view to_string(CodecKind kind) { return codec_of(kind).name; }
CodecKind codec_kind(std::string_view name) {
  const auto* stored = std::ranges::find(codecs, name, &Codec::stored_name);
  if (stored != codecs.end()) return stored->kind;
  return static_cast<CodecKind>(index_of(codec_names, name, "codec"));
}
std::string_view to_string(ScaleFormat format) { return scale_names[static_cast<std::size_t>(format)]; }
ScaleFormat scale_format(std::string_view name) {
  return static_cast<ScaleFormat>(index_of(scale_names, name, "scale format"));
}

CodecSpec default_spec(CodecKind kind) { return {.kind = kind, .block = codec_of(kind).block}; }

std::string problem_of(const CodecSpec& spec) {
  if (!std::has_single_bit(spec.block) || spec.block < smallest_block || spec.block > largest_block) {
    return "a block of " + std::to_string(spec.block) + " elements; expected a power of two from 16 to 4096";
  }
  if (!(spec.clip >= 0.01F && spec.clip <= 1)) {
    return "a clip of " + std::to_string(spec.clip) + "; expected .01 to 1";
  }
  if (spec.top_k < 1 || spec.top_k > piece) {
    return "a top_k of " + std::to_string(spec.top_k) + "; expected 1 to 4096";
  }
  return {};
}

std::uint32_t unit_of(const CodecSpec& spec) {
  if (spec.kind == CodecKind::topk) return piece;
  return has_blocks(spec.kind) ? spec.block : 1;
}

bool joins(const CodecSpec& spec, std::size_t elements) {
  const auto group = has_blocks(spec.kind) ? group_rows(codec_of(spec.kind).bits) * row : 1;
  return elements % unit_of(spec) == 0 && elements % group == 0;
}

std::size_t scale_part(const CodecSpec& spec, std::size_t elements) {
  return has_blocks(spec.kind) ? blocks_of(spec, elements) * scale_bytes(spec.scale) : 0;
}

std::size_t encoded_size(const CodecSpec& spec, std::size_t elements) {
  assert(problem_of(spec).empty());
  if (spec.kind == CodecKind::topk) {
    const auto last = elements % piece;
    return elements / piece * piece_bytes(spec.top_k) +
           (last == 0 ? 0 : piece_bytes(kept_of(spec.top_k, last)));
  }
  const auto bits = codec_of(spec.kind).bits;
  if (!has_blocks(spec.kind)) return elements * static_cast<std::size_t>(bits) / 8;
  const auto group = group_rows(bits) * row;
  return scale_part(spec, elements) + (elements + group - 1) / group * group_bytes(bits);
}

double bits_per_element(const CodecSpec& spec) {
  constexpr std::size_t many = std::size_t{1} << 30;
  return static_cast<double>(encoded_size(spec, many)) * 8 / static_cast<double>(many);
}

std::uint64_t noise_key(std::uint64_t seed, std::uint64_t fragment, std::uint64_t round) {
  return random_bits(random_bits(seed, 0x6e6f697365, fragment), 0, round);
}

// ---- the passes ----

Encoding completed(const CodecSpec& spec, Encoding encoding, const Feedback& feedback,
                   std::span<std::byte> out) {
  assert(problem_of(spec).empty());
  assert(feedback.residual.empty() || feedback.residual.size() == encoding.elements);
  assert(out.size() == encoded_size(spec, encoding.elements));
  assert(encoding.noise.first_element + encoding.elements <= std::uint64_t{1} << 32);
  encoding.residual = feedback.residual.empty() ? nullptr : feedback.residual.data();
  encoding.decay = feedback.decay;
  encoding.out = out.data();
  return encoding;
}

namespace {

const Passes& passes() {
  static const Passes best = vector_passes();
  return best;
}

std::optional<std::size_t> run(const CodecSpec& spec, const Encoding& encoding, const Feedback& feedback,
                               std::span<std::byte> out) {
  const auto good = passes().encode(spec, completed(spec, encoding, feedback, out));
  return good == encoding.elements ? std::nullopt : std::optional(good);
}

template <class T>
T little_endian(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool scales_are_valid(const CodecSpec& spec, const std::byte* in, std::size_t count) {
  bool valid = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = scale_bytes(spec.scale) == 2 ? little_endian<std::uint16_t>(in + 2 * i)
                                                            : static_cast<std::uint32_t>(in[i]);
    valid &= scale_is_valid(spec.scale, code);
  }
  return valid;
}

/// Whether positions ascend and are below the end of the piece.
bool positions_are_valid(const std::byte* in, std::size_t kept, std::size_t m) {
  std::size_t least = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    const auto two = little_endian<std::uint16_t>(in + i * 3 / 2);
    const std::size_t position = i % 2 == 0 ? two & 0xfff : two >> 4;
    if (position < least || position >= m) return false;
    least = position + 1;
  }
  return true;
}

bool pieces_are_valid(const CodecSpec& spec, const std::byte* in, std::size_t elements) {
  for (std::size_t begin = 0; begin < elements; begin += piece) {
    const auto m = std::min(piece, elements - begin);
    const auto kept = kept_of(spec.top_k, m);
    if (!scale_is_valid(ScaleFormat::bf16, little_endian<std::uint16_t>(in))) return false;
    if (!positions_are_valid(in + 2, kept, m)) return false;
    in += piece_bytes(kept);
  }
  return true;
}

}  // namespace

std::optional<std::size_t> encode(const CodecSpec& spec, std::span<const float> x, Feedback feedback,
                                  const Noise& noise, std::span<std::byte> out) {
  return run(spec, {.a = x.data(), .noise = noise, .elements = x.size()}, feedback, out);
}

std::optional<std::size_t> encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                                             std::span<const float> subtrahend, Feedback feedback,
                                             const Noise& noise, std::span<std::byte> out) {
  assert(minuend.size() == subtrahend.size());
  return run(spec,
             {.input = Encoding::Input::difference,
              .a = minuend.data(),
              .b = subtrahend.data(),
              .noise = noise,
              .elements = minuend.size()},
             feedback, out);
}

std::optional<std::size_t> encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                                           Feedback feedback, const Noise& noise, std::span<std::byte> out) {
  return run(spec,
             {.input = Encoding::Input::quotient,
              .a = sum.data(),
              .divisor = divisor,
              .noise = noise,
              .elements = sum.size()},
             feedback, out);
}

bool valid(const CodecSpec& spec, std::span<const std::byte> in, std::size_t elements) {
  if (in.size() != encoded_size(spec, elements)) return false;
  if (has_blocks(spec.kind)) return scales_are_valid(spec, in.data(), blocks_of(spec, elements));
  if (spec.kind == CodecKind::topk) return pieces_are_valid(spec, in.data(), elements);
  return passes().largest_magnitude(spec.kind, in.data(), elements) < infinity_bits;
}

bool decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out) {
  if (!valid(spec, in, out.size())) return false;
  passes().decode(spec, in.data(), out.data(), out.size());
  return true;
}

bool decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                       std::span<float> sum) {
  if (!valid(spec, in, sum.size())) return false;
  passes().accumulate(spec, in.data(), weight, sum.data(), sum.size());
  return true;
}

bool decode_apply(const CodecSpec& spec, std::span<const std::byte> in, const OuterStep& step,
                  std::span<float> theta, std::span<float> velocity, std::span<float> local) {
  assert(theta.size() == velocity.size() && (local.empty() || local.size() == theta.size()));
  if (!valid(spec, in, theta.size())) return false;
  passes().apply(spec, in.data(), step, theta.data(), velocity.data(), local.empty() ? nullptr : local.data(),
                 theta.size());
  return true;
}

void add_products(std::span<const float> x, std::span<const float> y, Products& total) {
  assert(x.size() == y.size());
  passes().products(x.data(), y.data(), x.size(), total);
}

void add_products(std::span<const Products> tiles, Products& total) {
  for (const auto& tile : tiles) {
    total.xx += tile.xx;
    total.xy += tile.xy;
    total.yy += tile.yy;
  }
}

}  // namespace isthmus::quant
