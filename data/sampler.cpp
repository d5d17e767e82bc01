#include "isthmus/data/sampler.h"

#include "isthmus/base/random.h"

namespace isthmus::data {

Sampler::Place Sampler::at(std::uint64_t sequence) const {
  constexpr std::uint64_t order_of_windows =
      0x77696e646f7773;  // a stream of random numbers of its own ("windows")
  const auto number = sequence * replicas_ + replica_;
  const auto epoch = number / windows_;
  return {epoch, permute(number % windows_, windows_, random_bits(seed_, order_of_windows, epoch))};
}

std::uint64_t heldout_window(std::uint64_t index, std::uint64_t count, std::uint64_t windows) {
  return index * windows / count;
}

}  // namespace isthmus::data
