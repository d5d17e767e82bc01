#pragma once
// Which data set each sequence of a replica comes from, in fixed proportions: a pure function of its number.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::data {

/// Every 1024 sequences hold each data set as often as its weight says (to 1/1024, but at least once), in an
/// order that a seed decides and that is the same each time. So after any number of sequences each has had
/// its share to within one pattern, and which sequence of a data set comes next follows from the number
/// alone.
class Mixture {
 public:
  static constexpr std::uint64_t pattern = 1024;
  struct Turn {
    std::size_t set;
    std::uint64_t sequence;  ///< of that data set, in the replica's own count
  };
  /// 1 to 1024 weights above 0 that add up to 1.
  Mixture(std::span<const double> weights, std::uint64_t seed);
  [[nodiscard]] Turn at(std::uint64_t sequence) const;
  /// The end of those from `sequence` on, all before `end` (> sequence), that come from one data set.
  [[nodiscard]] std::uint64_t end_of_turn(std::uint64_t sequence, std::uint64_t end) const;
  /// How many of the first `sequences` are of one data set.
  [[nodiscard]] std::uint64_t count(std::size_t set, std::uint64_t sequences) const;

 private:
  struct Slot {
    std::uint16_t set, rank;  ///< rank: of the slots of that data set before this one
  };
  std::vector<Slot> slots_;
  std::vector<std::vector<std::uint16_t>> slots_of_;  ///< each data set's
};

}  // namespace isthmus::data
