#pragma once
// The digest by which replicas compare their global parameters and momentum during a run
// (protocol/state_digests.h). It detects faults such as a flipped bit, but does not resist an attacker. It is
// a sum modulo 2^64, so its value does not depend on the order: CPUs and GPUs with any number of threads
// agree.

#include <cstdint>
#include <span>

namespace isthmus::outer_sync {

/// SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) of one
/// value's index and bits. It is a bijection for each index, so one changed bit always changes the digest.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t index, std::uint32_t bits) {
  std::uint64_t z = ((index << 32U) | bits) + 0x9e3779b97f4a7c15U * (index + 1);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

/// The sum of `mixed` over all values.
[[nodiscard]] std::uint64_t digest_of(std::span<const float> values);

/// Combines the digests of two vectors; their order matters.
[[nodiscard]] constexpr std::uint64_t combined(std::uint64_t first, std::uint64_t second) {
  return first * 0x9e3779b97f4a7c15U + second;
}

}  // namespace isthmus::outer_sync
