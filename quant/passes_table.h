#pragma once
// The passes for one instruction set. Arguments have been checked: sizes match, the spec and the encoded
// bytes are valid.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "isthmus/quant/codec.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {

/// The input of an encoder: a, a - b or a / divisor, plus the residual times its decay, if any.
struct Encoding {
  enum class Input : std::uint8_t { plain, difference, quotient } input = Input::plain;
  const float* a = nullptr;
  const float* b = nullptr;   ///< for difference
  float divisor = 1;          ///< for quotient
  float* residual = nullptr;  ///< null: none
  float decay = 1;
  Noise noise;
  std::size_t elements = 0;
  std::byte* out = nullptr;
};

/// Adds the arguments of all encoders to an encoding, and asserts that sizes match.
[[nodiscard]] Encoding completed(const CodecSpec& spec, Encoding encoding, const Feedback& feedback,
                                 std::span<std::byte> out);

struct Passes {
  std::string_view target;  ///< instruction set
  /// Returns the index of the first element that cannot be encoded, or `elements`.
  std::size_t (*encode)(const CodecSpec&, const Encoding&);
  void (*decode)(const CodecSpec&, const std::byte* in, float* out, std::size_t elements);
  void (*accumulate)(const CodecSpec&, const std::byte* in, float weight, float* sum, std::size_t elements);
  void (*apply)(const CodecSpec&, const std::byte* in, const OuterStep&, float* theta, float* velocity,
                float* local, std::size_t elements);
  void (*products)(const float* x, const float* y, std::size_t elements, Products& total);
  /// For fp32 or bf16: the largest bits of any magnitude, as fp32.
  std::uint32_t (*largest_magnitude)(CodecKind, const std::byte* in, std::size_t elements);
};

/// Plain C++, one element at a time: the reference for the others.
[[nodiscard]] Passes scalar_passes();
/// For the best instruction set of this CPU.
[[nodiscard]] Passes vector_passes();
/// For each instruction set of this CPU; for tests and benchmarks, on one thread.
[[nodiscard]] std::vector<Passes> all_vector_passes();

}  // namespace isthmus::quant
