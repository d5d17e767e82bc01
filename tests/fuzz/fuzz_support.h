#pragma once
// What the fuzzers share: inputs read as a codec, a length and a stream, and the reference to compare with.

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

/// Asserts may be compiled out; this is not.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The head of an input says what the rest of it is (tests/fuzz/write_corpus.py writes such):
///   0     kind
///   1     scale format, rounding from bit 2 on, whether the stream's size is left as it is from bit 3 on
///   2     block, as a power of two times 16
///   3, 4  top_k
///   5, 6  elements
///   7     the clip in 256ths, and what else a fuzzer wants to know
struct Case {
  static constexpr std::size_t head_size = 8;
  static constexpr std::size_t max_elements = 2 * piece + 300;

  CodecSpec spec;
  std::size_t elements = 0;
  std::uint8_t choice = 0;
  bool size_is_exact = true;
  std::span<const std::uint8_t> stream;

  /// False for inputs that are too short.
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
    require(problem_of(spec).empty(), "a spec that no codec has");
    return true;
  }

  /// The stream as encoded bytes: mostly cut or filled up to the right size, since a wrong one ends all
  /// checks.
  [[nodiscard]] Encoded encoded() const {
    const auto* begin = reinterpret_cast<const std::byte*>(stream.data());
    const auto wanted = size_is_exact ? encoded_size(spec, elements) : stream.size();
    Encoded bytes(begin, begin + std::min(wanted, stream.size()));
    bytes.resize(wanted);
    return bytes;
  }

  /// The stream as values, repeated until there are enough.
  [[nodiscard]] Values values(std::size_t skip = 0) const {
    Values out(elements, 0.0F);
    if (stream.size() < sizeof(float)) return out;
    const auto there = stream.size() / sizeof(float);
    for (std::size_t i = 0; i < elements; ++i)
      std::memcpy(&out[i], stream.data() + (i + skip) % there * sizeof(float), sizeof(float));
    return out;
  }
};

/// Some finite values that have nothing to do with the stream.
inline Values some_values(std::size_t n, float step) {
  Values out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = step * static_cast<float>(i % 17) - 1;
  return out;
}

}  // namespace isthmus::quant
