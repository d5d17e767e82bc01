#include "isthmus/base/random.h"

#include <bit>
#include <cassert>

namespace isthmus {

Permutation::Permutation(std::uint64_t size, std::uint64_t key)
    // Halves of equal width: the domain is the smallest power of four that holds `size`, so at() needs fewer
    // than four iterations on average.
    : size_(size), half_((std::bit_width(size - 1) + 1) / 2) {
  assert(size >= 1);
  // A round's bits are random_bits(key, round, right half); this is the part that is the same for every
  // index.
  for (std::uint64_t round = 0; round < rounds_.size(); ++round) rounds_[round] = mix64(mix64(key) ^ round);
}

std::uint64_t Permutation::at(std::uint64_t index) const {
  assert(index < size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
  do {
    std::uint64_t left = index >> half_;
    std::uint64_t right = index & mask;
    for (const auto round : rounds_) {
      const auto mixed = left ^ (mix64(round ^ right) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace isthmus
