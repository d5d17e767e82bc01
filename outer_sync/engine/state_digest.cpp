#include "isthmus/outer_sync/engine/state_digest.h"

#include <bit>
#include <cstddef>

namespace isthmus::outer_sync {

std::uint64_t digest_of(std::span<const float> values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += mixed(i, std::bit_cast<std::uint32_t>(values[i]));
  return sum;
}

}  // namespace isthmus::outer_sync
