// Names and sizes of the codecs, and the checks before a pass.

#include "isthmus/quant/codec.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "cpu_codec.h"
#include "formats.h"
#include "isthmus/base/error.h"

namespace isthmus::quant {
namespace {

bool has_blocks(CodecKind kind) { return kind != CodecKind::fp32 && kind != CodecKind::bf16; }

bool valid(const CodecSpec& spec) {
  if (!has_blocks(spec.kind)) return true;
  return spec.block >= smallest_block && spec.block <= largest_block && spec.block % 2 == 0;
}

bool encode_input(const CodecSpec& spec, const cpu::Input& input, std::span<float> residual,
                  std::span<std::byte> out) {
  assert(residual.empty() || residual.size() == input.elements);
  assert(out.size() == encoded_size(spec, input.elements));
  return cpu::encode(spec, input, out.data());
}

}  // namespace

std::string_view to_string(CodecKind kind) { return codec_names[static_cast<std::size_t>(kind)]; }

CodecKind codec_kind(std::string_view name) {
  const auto* found = std::find(std::begin(codec_names), std::end(codec_names), name);
  if (found == std::end(codec_names)) {
    std::string message = "unknown codec \"" + std::string(name) + "\", expected one of";
    for (const auto known : codec_names) message.append(" ").append(known);
    throw Error(ErrorKind::config, message);
  }
  return static_cast<CodecKind>(found - std::begin(codec_names));
}

std::size_t encoded_size(const CodecSpec& spec, std::size_t elements) {
  assert(valid(spec));
  const auto scales = [&] { return (elements + spec.block - 1) / spec.block * 2; };
  switch (spec.kind) {
    case CodecKind::fp32:
      return elements * 4;
    case CodecKind::bf16:
      return elements * 2;
    case CodecKind::int8:
      return scales() + elements;
    case CodecKind::int4:
    case CodecKind::e3m0:
      return scales() + (elements + 1) / 2;
  }
  assert(false);
  return 0;
}

double bits_per_element(const CodecSpec& spec) {
  constexpr double code_bits[] = {32, 16, 8, 4, 4};
  const double scale_bits = has_blocks(spec.kind) ? 16.0 / spec.block : 0;
  return code_bits[static_cast<std::size_t>(spec.kind)] + scale_bits;
}

bool encode(const CodecSpec& spec, std::span<const float> x, std::span<float> residual,
            std::span<std::byte> out) {
  return encode_input(spec, {cpu::Input::Kind::plain, x.data(), nullptr, 1, residual.data(), x.size()},
                      residual, out);
}

bool encode_difference(const CodecSpec& spec, std::span<const float> minuend,
                       std::span<const float> subtrahend, std::span<float> residual,
                       std::span<std::byte> out) {
  assert(minuend.size() == subtrahend.size());
  const cpu::Input input{
      cpu::Input::Kind::difference, minuend.data(), subtrahend.data(), 1, residual.data(), minuend.size()};
  return encode_input(spec, input, residual, out);
}

bool encode_quotient(const CodecSpec& spec, std::span<const float> sum, float divisor,
                     std::span<float> residual, std::span<std::byte> out) {
  const cpu::Input input{
      cpu::Input::Kind::quotient, sum.data(), nullptr, divisor, residual.data(), sum.size()};
  return encode_input(spec, input, residual, out);
}

bool decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out) {
  return in.size() == encoded_size(spec, out.size()) && cpu::decode(spec, in.data(), out.data(), out.size());
}

bool decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                       std::span<float> sum) {
  return in.size() == encoded_size(spec, sum.size()) &&
         cpu::decode_accumulate(spec, in.data(), weight, sum.data(), sum.size());
}

}  // namespace isthmus::quant
