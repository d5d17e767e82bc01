#pragma once
// Shared by the CPU loops. They are plain loops, which the compiler builds in one version for each kind of
// processor; the version is chosen when the program is loaded. All versions give the same bits if the loops
// use only exact operations, since contraction into fused multiply-adds is off.

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__gnu_linux__)
#define ISTHMUS_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define ISTHMUS_CLONES
#endif
#define ISTHMUS_INLINE inline __attribute__((always_inline))

namespace isthmus::trainer {

/// Whether a loop over this many elements is shared among the threads; the number is libtorch's. For fewer it
/// takes longer to wake the threads than to do the work, and while they wait for more they use processors.
inline bool is_worth_sharing(std::size_t elements) { return elements >= 32768; }

/// The bits of a bfloat16: the upper half of an fp32.
struct Bf16 {
  std::uint16_t bits;
};

ISTHMUS_INLINE float widen(float x) { return x; }
ISTHMUS_INLINE float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

ISTHMUS_INLINE void narrow(float x, float& out) { out = x; }
/// Rounds to nearest, ties to even. Rounding would turn a NaN with an upper half of all ones into zero.
ISTHMUS_INLINE void narrow(float x, Bf16& out) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  out.bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40U : rounded);
}

}  // namespace isthmus::trainer
