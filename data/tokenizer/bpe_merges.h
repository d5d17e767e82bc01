#pragma once
// The merge rules of a BPE, and how they turn a word into ids.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_spec.h"

namespace isthmus::data {

/// A hash: each of the 64 bits depends on all of `key`.
inline std::uint64_t mixed(std::uint64_t key) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15U;
  return key ^ key >> 29;
}

/// A hash table from pairs of numbers to pairs of numbers, which is filled once and then only read.
class PairTable {
 public:
  struct Value {
    std::uint32_t first = 0, second = 0;
  };
  explicit PairTable(std::size_t max_entries);
  /// A later value for the same key replaces an earlier one.
  void put(std::uint32_t left, std::uint32_t right, Value value);
  /// Null if the key is not in the table.
  [[nodiscard]] const Value* find(std::uint32_t left, std::uint32_t right) const {
    const auto key = key_of(left, right);
    for (auto i = mixed(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == nothing) return nullptr;
    }
  }

 private:
  // No key has this value, since no id is 2^32 - 1.
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = nothing;
    Value value;
  };
  static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 32 | right;
  }
  std::uint64_t mask_;
  std::vector<Slot> slots_;
};

/// Immutable.
class Merges {
 public:
  /// `byte_ids` has the token ids of the 256 bytes.
  Merges(const std::vector<MergeRule>& rules, std::span<const std::uint32_t, 256> byte_ids);

  /// Working memory of apply(); for one thread at a time.
  struct Scratch {
    std::vector<std::uint32_t> ids, previous, next;
    std::vector<std::uint64_t> queue;
  };

  /// Appends the ids of `word`, which has fewer than 2^32 - 1 bytes. Merges neighbours in the order of the
  /// rules, from left to right (Sennrich et al. 2016, arXiv 1508.07909). O(n log n).
  void apply(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& out) const;

 private:
  void apply_short(Scratch& scratch) const;
  void apply_long(Scratch& scratch) const;

  std::array<std::uint32_t, 256> byte_ids_{};
  PairTable table_;  ///< by pair: rank of the rule and id of the result
};

}  // namespace isthmus::data
