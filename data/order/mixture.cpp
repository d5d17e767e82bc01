#include "order/mixture.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "isthmus/base/random.h"

namespace isthmus::data {
namespace {

/// Slots for each weight: the integer part, then one more for each of the largest remainders.
std::vector<std::uint64_t> apportion(std::span<const double> weights) {
  std::vector<std::uint64_t> slots;
  std::vector<double> rest;
  for (const auto weight : weights) {
    const auto exact = weight * static_cast<double>(Mixture::pattern);
    slots.push_back(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(exact)));
    rest.push_back(exact - static_cast<double>(slots.back()));
  }
  auto sum = std::accumulate(slots.begin(), slots.end(), std::uint64_t{0});
  while (sum != Mixture::pattern) {
    const bool more = sum < Mixture::pattern;
    const auto best =
        more ? std::max_element(rest.begin(), rest.end()) : std::min_element(rest.begin(), rest.end());
    auto& count = slots[static_cast<std::size_t>(best - rest.begin())];
    if (!more && count == 1) {
      *best = INFINITY;  // already at the minimum
      continue;
    }
    *best += more ? -1 : 1;
    count += more ? 1 : std::uint64_t(-1);
    sum += more ? 1 : std::uint64_t(-1);
  }
  return slots;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights, std::uint64_t seed) : slots_of_(weights.size()) {
  assert(!weights.empty() && weights.size() <= pattern);
  const auto counts = apportion(weights);
  constexpr std::uint64_t order_of_sets = 0x6d697874757265;  // "mixture"
  std::vector<std::uint16_t> in_order;
  for (std::size_t set = 0; set < counts.size(); ++set)
    in_order.insert(in_order.end(), counts[set], static_cast<std::uint16_t>(set));
  for (std::uint64_t i = 0; i < pattern; ++i) {
    const auto set = in_order[permute(i, pattern, random_bits(seed, order_of_sets, 0))];
    slots_.push_back({set, static_cast<std::uint16_t>(slots_of_[set].size())});
    slots_of_[set].push_back(static_cast<std::uint16_t>(i));
  }
}

Mixture::Turn Mixture::at(std::uint64_t sequence) const {
  const auto slot = slots_[sequence % pattern];
  return {slot.set, sequence / pattern * slots_of_[slot.set].size() + slot.rank};
}

std::uint64_t Mixture::end_of_turn(std::uint64_t sequence, std::uint64_t end) const {
  if (slots_of_.size() == 1) return end;
  const auto set = slots_[sequence % pattern].set;
  while (++sequence < end && slots_[sequence % pattern].set == set) {
  }
  return sequence;
}

std::uint64_t Mixture::count(std::size_t set, std::uint64_t sequences) const {
  const auto& slots = slots_of_[set];
  const auto last = std::ranges::lower_bound(slots, sequences % pattern);
  return sequences / pattern * slots.size() + static_cast<std::uint64_t>(last - slots.begin());
}

}  // namespace isthmus::data
