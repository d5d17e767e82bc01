#pragma once
// Counter-based random numbers: a value is a pure function of (seed, stream, counter), so results never
// depend on threads, order or device. The mixer is SplitMix64's finaliser (Steele, Lea, Flood 2014) applied
// to each word in turn.

#include <array>
#include <cstdint>

namespace isthmus {

[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// 64 uniform bits for one counter of one stream.
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                                  std::uint64_t counter) {
  return mix64(mix64(mix64(seed) ^ stream) ^ counter);
}

/// Uniform in [0, 1) with 24 bits: exact in fp32.
[[nodiscard]] constexpr float random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  return static_cast<float>(random_bits(seed, stream, counter) >> 40) * 0x1p-24F;
}

/// A bijection of [0, size) for each key, constructed once for many indices. Four Feistel rounds over the
/// next power of four, repeated until the result is inside; needs no array. size >= 1.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// `index` (< size) is the position in the shuffled order; returns the element at this position.
  [[nodiscard]] std::uint64_t at(std::uint64_t index) const;

 private:
  std::uint64_t size_;
  int half_;  ///< bits of each half of an index
  std::array<std::uint64_t, 4> rounds_;
};

/// The same for one index.
[[nodiscard]] inline std::uint64_t permute(std::uint64_t index, std::uint64_t size, std::uint64_t key) {
  return Permutation(size, key).at(index);
}

}  // namespace isthmus
