#include "isthmus/base/random.h"

#include <bit>
#include <cassert>

namespace isthmus {

std::uint64_t permute(std::uint64_t index, std::uint64_t size, std::uint64_t key) {
  assert(size >= 1 && index < size);
  // Halves of equal width: the domain is the smallest power of four that holds `size`, so a walk takes fewer
  // than four steps on average.
  const int half = (std::bit_width(size - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const auto mixed = left ^ (random_bits(key, round, right) & mask);
      left = right;
      right = mixed;
    }
    index = left << half | right;
  } while (index >= size);
  return index;
}

}  // namespace isthmus
