#pragma once
// The digest by which replicas compare their global parameters and momentum while a run goes on
// (protocol/audits.h). It finds faults, such as a flipped bit, and does not resist an attacker. A sum modulo
// 2^64 has the same value in any order, so CPUs and GPUs of any number of threads agree.

#include <cstdint>
#include <span>

namespace isthmus::outer_sync {

/// SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) of one
/// value's place and bits. It is a bijection: one changed bit always changes the digest.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t index, std::uint32_t bits) {
  std::uint64_t z = ((index << 32U) | bits) + 0x9e3779b97f4a7c15U * (index + 1);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

/// The sum of `mixed` over all values.
[[nodiscard]] std::uint64_t digest_of(std::span<const float> values);

/// Of two vectors, in this order.
[[nodiscard]] constexpr std::uint64_t combined(std::uint64_t first, std::uint64_t second) {
  return first * 0x9e3779b97f4a7c15U + second;
}

}  // namespace isthmus::outer_sync
