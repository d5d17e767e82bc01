#pragma once
// Decides which data set each sequence of a replica comes from, in fixed proportions: a pure function of its
// number.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::data {

/// Every 1024 sequences contain each data set in proportion to its weight (to 1/1024, but at least once), in
/// an order that depends on the seed and repeats. So after any number of sequences each data set has had its
/// share to within one pattern, and the number alone decides which of its sequences comes next.
class Mixture {
 public:
  static constexpr std::uint64_t pattern = 1024;
  struct Turn {
    std::size_t set;
    std::uint64_t sequence;  ///< number in that data set, as the replica counts
  };
  /// 1 to 1024 weights above 0 that add up to 1.
  Mixture(std::span<const double> weights, std::uint64_t seed);
  [[nodiscard]] Turn at(std::uint64_t sequence) const;
  /// The end of the sequences from `sequence` on that come from one data set, at most `end` (> sequence).
  [[nodiscard]] std::uint64_t end_of_turn(std::uint64_t sequence, std::uint64_t end) const;
  /// How many of the first `sequences` come from one data set.
  [[nodiscard]] std::uint64_t count(std::size_t set, std::uint64_t sequences) const;

 private:
  struct Slot {
    std::uint16_t set, rank;  ///< rank: slots of that data set before this one
  };
  std::vector<Slot> slots_;
  std::vector<std::vector<std::uint16_t>> slots_of_;  ///< by data set
};

}  // namespace isthmus::data
