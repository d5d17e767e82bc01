#pragma once
// The passes of one instruction set. Arguments have been checked: sizes match, the spec is one, encoded bytes
// are valid.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "isthmus/quant/codec.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {

/// What is encoded: a, a - b or a / divisor, plus the residual times its decay if there is one.
struct Encoding {
  enum class Input : std::uint8_t { plain, difference, quotient } input = Input::plain;
  const float* a = nullptr;
  const float* b = nullptr;   ///< for difference
  float divisor = 1;          ///< for quotient
  float* residual = nullptr;  ///< null for none
  float decay = 1;
  Noise noise;
  std::size_t elements = 0;
  std::byte* out = nullptr;
};

/// Completes an encoding by what all encoders take, and asserts that sizes match.
[[nodiscard]] Encoding completed(const CodecSpec& spec, Encoding encoding, const Feedback& feedback,
                                 std::span<std::byte> out);

struct Passes {
  std::string_view target;  ///< instruction set
  /// Index of the first element that cannot be encoded; `elements` if there is none.
  std::size_t (*encode)(const CodecSpec&, const Encoding&);
  void (*decode)(const CodecSpec&, const std::byte* in, float* out, std::size_t elements);
  void (*accumulate)(const CodecSpec&, const std::byte* in, float weight, float* sum, std::size_t elements);
  void (*apply)(const CodecSpec&, const std::byte* in, const OuterStep&, float* theta, float* velocity,
                float* local, std::size_t elements);
  void (*products)(const float* x, const float* y, std::size_t elements, Products& total);
  /// Of fp32 or bf16: the largest bits that any magnitude has in fp32.
  std::uint32_t (*largest_magnitude)(CodecKind, const std::byte* in, std::size_t elements);
};

/// Plain C++, one element at a time: what the others are compared with.
[[nodiscard]] Passes scalar_passes();
/// For the best instruction set that this CPU has.
[[nodiscard]] Passes vector_passes();
/// For each that it has; for tests and benchmarks, on one thread.
[[nodiscard]] std::vector<Passes> all_vector_passes();

}  // namespace isthmus::quant
