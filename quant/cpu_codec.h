#pragma once
// The passes on the CPU. Arguments have been checked by codec.cpp: sizes match and the spec is valid.

#include <cstddef>
#include <cstdint>

#include "isthmus/quant/codec.h"

namespace isthmus::quant::cpu {

/// What is encoded: a, a - b or a / divisor, plus the residual if there is one.
struct Input {
  enum class Kind : std::uint8_t { plain, difference, quotient } kind;
  const float* a;
  const float* b;   ///< for difference
  float divisor;    ///< for quotient
  float* residual;  ///< nullptr for none
  std::size_t elements;
};

[[nodiscard]] bool encode(const CodecSpec& spec, const Input& input, std::byte* out);
[[nodiscard]] bool decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements);
[[nodiscard]] bool decode_accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum,
                                     std::size_t elements);

}  // namespace isthmus::quant::cpu
