#include "tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace isthmus::data {
namespace {

/// Up to this many bytes, looking at all neighbours for each merge is faster than a queue.
constexpr std::size_t short_word = 48;
constexpr std::uint32_t nobody = ~std::uint32_t{0};

}  // namespace

PairTable::PairTable(std::size_t max_entries)
    : mask_(std::bit_ceil(2 * max_entries + 1) - 1), slots_(mask_ + 1) {}

void PairTable::put(std::uint32_t left, std::uint32_t right, Value value) {
  const auto key = key_of(left, right);
  auto i = mixed(key) & mask_;
  while (slots_[i].key != key && slots_[i].key != nothing) i = (i + 1) & mask_;
  slots_[i] = {key, value};
}

Merges::Merges(const std::vector<MergeRule>& rules, std::span<const std::uint32_t, 256> byte_ids)
    : table_(rules.size()) {
  std::copy(byte_ids.begin(), byte_ids.end(), byte_ids_.begin());
  for (std::size_t rank = 0; rank < rules.size(); ++rank)
    table_.put(rules[rank].left, rules[rank].right, {static_cast<std::uint32_t>(rank), rules[rank].result});
}

void Merges::apply(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& out) const {
  auto& ids = scratch.ids;
  ids.clear();
  for (const char c : word) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  if (ids.size() <= short_word) {
    apply_short(scratch);
  } else {
    apply_long(scratch);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void Merges::apply_short(Scratch& scratch) const {
  auto& ids = scratch.ids;
  std::array<PairTable::Value, short_word> pairs;  // of each token with its right neighbour
  const auto look_up = [&](std::size_t i) {
    const auto* found = table_.find(ids[i], ids[i + 1]);
    pairs[i] = found == nullptr ? PairTable::Value{nobody, 0} : *found;
  };
  auto n = ids.size();
  for (std::size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].first < pairs[best].first) best = i;
    if (pairs[best].first == nobody) break;
    ids[best] = pairs[best].second;
    --n;
    for (auto i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      if (i + 1 < n) pairs[i] = pairs[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  ids.resize(n);
}

void Merges::apply_long(Scratch& scratch) const {
  auto &ids = scratch.ids, &previous = scratch.previous, &next = scratch.next;
  auto& queue = scratch.queue;
  const auto n = static_cast<std::uint32_t>(ids.size());
  previous.resize(n);
  next.resize(n);
  queue.clear();
  // The rank is in the high bits and the position in the low ones, so the smallest number is the next merge.
  // An entry can be outdated when its turn comes; then the pair at its position has another rank, since
  // tokens only grow.
  const auto offer = [&](std::uint32_t i) {
    const auto* found = table_.find(ids[i], ids[next[i]]);
    if (found == nullptr) return;
    queue.push_back(std::uint64_t{found->first} << 32 | i);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  for (std::uint32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;  // wraps around for the first
    next[i] = i + 1 < n ? i + 1 : nobody;
  }
  for (std::uint32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto i = static_cast<std::uint32_t>(queue.back());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    queue.pop_back();
    if (ids[i] == nobody || next[i] == nobody) continue;
    const auto* found = table_.find(ids[i], ids[next[i]]);
    if (found == nullptr || found->first != rank) continue;
    const auto right = next[i];
    ids[i] = found->second;
    ids[right] = nobody;
    next[i] = next[right];
    if (next[i] != nobody) {
      previous[next[i]] = i;
      offer(i);
    }
    if (previous[i] != nobody) offer(previous[i]);
  }
  std::erase(ids, nobody);
}

}  // namespace isthmus::data
