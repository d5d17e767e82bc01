#pragma once
// The merges of a BPE, and the ids of one word by them.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bpe_spec.h"

namespace isthmus::data {

/// 64 bits of which each depends on all of `key`.
inline std::uint64_t mixed(std::uint64_t key) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15U;
  return key ^ key >> 29;
}

/// From two numbers to two numbers: a hash table that is made once and then only read.
class PairTable {
 public:
  struct Value {
    std::uint32_t first = 0, second = 0;
  };
  explicit PairTable(std::size_t max_entries);
  /// The last value that was put is what a key has.
  void put(std::uint32_t left, std::uint32_t right, Value value);
  /// Null if there is none.
  [[nodiscard]] const Value* find(std::uint32_t left, std::uint32_t right) const {
    const auto key = key_of(left, right);
    for (auto i = mixed(key) & mask_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == nothing) return nullptr;
    }
  }

 private:
  // No id is 2^32 - 1.
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
  /// `byte_ids` are the ids of the 256 bytes.
  Merges(const std::vector<MergeRule>& rules, std::span<const std::uint32_t, 256> byte_ids);

  /// What merging works on; for one thread at a time.
  struct Scratch {
    std::vector<std::uint32_t> ids, previous, next;
    std::vector<std::uint64_t> queue;
  };

  /// Appends the ids of `word`, of less than 2^32 - 1 bytes: of all neighbours that may be merged, those
  /// whose rule stands first go first, from the left (Sennrich et al. 2016, arXiv 1508.07909). O(n log n).
  void apply(std::string_view word, Scratch& scratch, std::vector<std::uint32_t>& out) const;

 private:
  void apply_short(Scratch& scratch) const;
  void apply_long(Scratch& scratch) const;

  std::array<std::uint32_t, 256> byte_ids_{};
  PairTable table_;  ///< rank and id of the result
};

}  // namespace isthmus::data
