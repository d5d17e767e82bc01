#pragma once
// Helpers shared by the fuzzers: inputs as a codec, a length and a stream, and the reference to compare with.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "formats.h"
#include "isthmus/quant/codec.h"
#include "isthmus/quant/passes.h"
#include "passes_table.h"

namespace isthmus::quant {

using Values = std::vector<float>;
using Encoded = std::vector<std::byte>;

/// Unlike assert, never compiled out.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The head of an input describes the rest (tests/fuzz/write_corpus.py writes inputs):
///   0     kind
///   1     scale format (bits 0 and 1), stochastic rounding (bit 2), keep the stream's size (bit 3)
///   2     log2(block / 16)
///   3, 4  top_k
///   5, 6  elements
///   7     the clip in 256ths; fuzzers also use it for their own choices
struct Case {
  static constexpr std::size_t head_size = 8;
  static constexpr std::size_t max_elements = 2 * piece + 300;

  CodecSpec spec;
  std::size_t elements = 0;
  std::uint8_t choice = 0;
  bool size_is_exact = true;
  std::span<const std::uint8_t> stream;

  /// False if the input is too short.
  bool read(const std::uint8_t* data, std::size_t size) {
    if (size < head_size) return false;
    const auto two_bytes = [&](std::size_t at) {
      return static_cast<std::size_t>(data[at] | data[at + 1] << 8);
    };
    spec.kind = static_cast<CodecKind>(data[0] % std::size(codec_names));
    spec.scale = static_cast<ScaleFormat>(data[1] % 4 % std::size(scale_names));
    spec.rounding = (data[1] & 4) == 0 ? Rounding::nearest : Rounding::stochastic;
    size_is_exact = (data[1] & 8) == 0;
    spec.block = smallest_block << data[2] % 9;
    spec.top_k = static_cast<std::uint32_t>(two_bytes(3) % piece + 1);
    elements = two_bytes(5) % (max_elements + 1);
    choice = data[7];
    spec.clip = std::max(0.01F, static_cast<float>(data[7] + 1) / 256.0F);
    stream = {data + head_size, size - head_size};
    require(problem_of(spec).empty(), "an invalid codec spec");
    return true;
  }

  /// The stream as encoded bytes, normally cut or padded to the right size: a wrong size would end all
  /// checks.
  [[nodiscard]] Encoded encoded() const {
    const auto* begin = reinterpret_cast<const std::byte*>(stream.data());
    const auto wanted = size_is_exact ? encoded_size(spec, elements) : stream.size();
    Encoded bytes(begin, begin + std::min(wanted, stream.size()));
    bytes.resize(wanted);
    return bytes;
  }

  /// The stream as values, repeated as needed.
  [[nodiscard]] Values values(std::size_t skip = 0) const {
    Values out(elements, 0.0F);
    if (stream.size() < sizeof(float)) return out;
    const auto there = stream.size() / sizeof(float);
    for (std::size_t i = 0; i < elements; ++i)
      std::memcpy(&out[i], stream.data() + (i + skip) % there * sizeof(float), sizeof(float));
    return out;
  }
};

/// Finite values that do not depend on the stream.
inline Values some_values(std::size_t n, float step) {
  Values out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = step * static_cast<float>(i % 17) - 1;
  return out;
}

}  // namespace isthmus::quant
