#include "isthmus/data/sampler.h"

#include <algorithm>

#include "isthmus/base/random.h"

namespace isthmus::data {
namespace {

// Streams of random numbers of their own ("windows", "group").
constexpr std::uint64_t order_of_windows = 0x77696e646f7773;
constexpr std::uint64_t order_in_group = 0x67726f7570;

}  // namespace

Sampler::Sampler(std::uint64_t windows, std::uint64_t replica, std::uint64_t replicas, std::uint64_t seed,
                 Shuffle shuffle)
    : windows_(windows), replica_(replica), replicas_(replicas), seed_(seed) {
  if (shuffle.group_windows() == 0 || windows <= shuffle.group_windows()) return;
  shuffle_ = shuffle;
  full_blocks_ = windows / shuffle.block;
  // Blocks that are not full come last, with the last group.
  groups_ = (full_blocks_ + shuffle.group - 1) / shuffle.group;
}

std::uint64_t Sampler::number_of(std::uint64_t sequence) const {
  const auto turn = has_groups() ? shuffle_.group_windows() : 1;
  return (sequence / turn * replicas_ + replica_) * turn + sequence % turn;
}

std::uint64_t Sampler::key(std::uint64_t epoch) const { return random_bits(seed_, order_of_windows, epoch); }

Sampler::Place Sampler::at(std::uint64_t sequence) const {
  const auto number = number_of(sequence);
  const auto epoch = number / windows_;
  const auto rank = number % windows_;
  if (!has_groups()) return {epoch, permute(rank, windows_, key(epoch))};
  const auto size = shuffle_.group_windows();
  const auto group = std::min(rank / size, groups_ - 1);
  const auto first = group * size;
  const auto count = group + 1 < groups_ ? size : windows_ - first;
  const auto in_group = permute(rank - first, count, random_bits(key(epoch), order_in_group, group));
  const auto of = block(epoch, group, in_group / shuffle_.block);
  return {epoch, of.first + in_group % shuffle_.block, group, in_group};
}

std::uint64_t Sampler::next_group(std::uint64_t sequence) const {
  const auto size = shuffle_.group_windows();
  const auto rank = number_of(sequence) % windows_;
  const auto group = std::min(rank / size, groups_ - 1);
  const auto left_in_group = (group + 1 < groups_ ? (group + 1) * size : windows_) - rank;
  const auto left_in_turn = replicas_ == 1 ? left_in_group : size - sequence % size;
  return sequence + std::min(left_in_group, left_in_turn);
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
