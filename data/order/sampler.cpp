#include "isthmus/data/sampler.h"

#include <algorithm>
#include <vector>

#include "isthmus/base/random.h"

namespace isthmus::data {
namespace {

// Separate streams of random numbers ("windows", "group").
constexpr std::uint64_t order_of_windows = 0x77696e646f7773;
constexpr std::uint64_t order_in_group = 0x67726f7570;

}  // namespace

Sampler::Sampler(std::uint64_t windows, std::uint64_t replica, std::uint64_t replicas, std::uint64_t seed,
                 Shuffle shuffle)
    : windows_(windows), replica_(replica), replicas_(replicas), seed_(seed) {
  if (shuffle.group_windows() == 0 || windows <= shuffle.group_windows()) return;
  shuffle_ = shuffle;
  full_blocks_ = windows / shuffle.block;
  // A partial block comes last, with the last group.
  groups_ = (full_blocks_ + shuffle.group - 1) / shuffle.group;
}

std::uint64_t Sampler::number_of(std::uint64_t sequence) const {
  const auto turn = has_groups() ? shuffle_.group_windows() : 1;
  return (sequence / turn * replicas_ + replica_) * turn + sequence % turn;
}

std::uint64_t Sampler::key(std::uint64_t epoch) const { return random_bits(seed_, order_of_windows, epoch); }

Sampler::Place Sampler::at(std::uint64_t sequence) const {
  if (!has_groups()) {
    const auto number = number_of(sequence);
    const auto epoch = number / windows_;
    return {epoch, permute(number % windows_, windows_, key(epoch))};
  }
  const auto of = visit(sequence);
  std::vector<std::uint32_t> windows(windows_of(of.group));
  order(of.epoch, of.group, windows);
  const auto index = windows[of.rank];
  return {of.epoch, block(of.epoch, of.group, index / shuffle_.block).first + index % shuffle_.block};
}

Sampler::Visit Sampler::visit(std::uint64_t sequence) const {
  const auto size = shuffle_.group_windows();
  const auto number = number_of(sequence);
  const auto in_epoch = number % windows_;
  const auto group = std::min(in_epoch / size, groups_ - 1);
  const auto rank = in_epoch - group * size;
  const auto left_in_group = windows_of(group) - rank;
  const auto left_in_turn = replicas_ == 1 ? left_in_group : size - sequence % size;
  return {number / windows_, group, rank, sequence + std::min(left_in_group, left_in_turn)};
}

std::uint64_t Sampler::windows_of(std::uint64_t group) const {
  const auto size = shuffle_.group_windows();
  return group + 1 < groups_ ? size : windows_ - group * size;
}

/// Fisher-Yates shuffle: a group's whole order is needed, which costs less this way than by permute().
void Sampler::order(std::uint64_t epoch, std::uint64_t group, std::span<std::uint32_t> out) const {
  const auto order_key = random_bits(key(epoch), order_in_group, group);
  const auto count = windows_of(group);
  for (std::uint64_t i = 0; i < count; ++i) {
    // One of i + 1 places, by the high 32 bits, which are uniform enough for any group.
    const auto place = ((mix64(order_key ^ i) >> 32) * (i + 1)) >> 32;
    out[i] = out[place];
    out[place] = static_cast<std::uint32_t>(i);
  }
}

std::uint64_t Sampler::blocks_of(std::uint64_t group) const {
  if (group + 1 < groups_) return shuffle_.group;
  const auto all_blocks = full_blocks_ + (windows_ % shuffle_.block > 0 ? 1 : 0);
  return all_blocks - group * shuffle_.group;
}

Sampler::Block Sampler::block(std::uint64_t epoch, std::uint64_t group, std::uint64_t rank) const {
  const auto index = group * shuffle_.group + rank;
  const auto size = shuffle_.block;
  if (index >= full_blocks_) return {full_blocks_ * size, windows_ - full_blocks_ * size};
  return {permute(index, full_blocks_, key(epoch)) * size, size};
}

std::uint64_t heldout_window(std::uint64_t index, std::uint64_t count, std::uint64_t windows) {
  return index * windows / count;
}

}  // namespace isthmus::data
