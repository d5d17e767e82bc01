#pragma once
// Which training sequences are in the run's global parameters. What a contribution was trained on travels
// with it and stands in the round's result, so every member that applies the same rounds has the same ledger,
// and none of it is anybody's word (docs/protocol.md, "The ledger").

#include <cstdint>
#include <vector>

#include "isthmus/base/samples.h"

namespace isthmus::outer_sync::protocol {

/// What the rounds of one fragment were made of, up to one of them.
class FragmentLedger {
 public:
  /// Rounds whose samples are kept apart, so that the ledger can be told as it was a few rounds ago: for
  /// newcomers, who stand there.
  static constexpr std::size_t max_pending_ranges = 8;

  FragmentLedger() = default;
  /// Of a fragment at `round`, of whose rounds nothing is known.
  explicit FragmentLedger(std::uint64_t round) : base_(round), unknown_(round) {}

  /// The newest round that it knows of.
  [[nodiscard]] std::uint64_t round() const { return base_ + later_.size(); }
  /// The round after that one was made of these, each contributor's behind one another.
  void add(std::vector<SampleRange> samples);
  /// It is not known what that round was made of: of one that takes the state from others, before its first
  /// view tells it.
  void skip();
  /// Rounds of which that is so.
  [[nodiscard]] std::uint64_t unknown() const { return unknown_; }
  /// Goes back to an earlier round; false, and nothing is changed, if that is too long ago.
  [[nodiscard]] bool cut(std::uint64_t round);

  /// In a round; and in more than one, or twice in one.
  [[nodiscard]] SampleSet done() const;
  [[nodiscard]] SampleSet twice() const;
  /// Whether it can be one, as it came from elsewhere.
  [[nodiscard]] bool sound() const;

  friend bool operator==(const FragmentLedger& a, const FragmentLedger& b) {
    return a.round() == b.round() && a.unknown_ == b.unknown_ && a.done() == b.done() &&
           a.twice() == b.twice();
  }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(base_, unknown_, done_, twice_, later_);
  }

 private:
  void fold_first();

  std::uint64_t base_ = 0;  ///< the round that `done_` and `twice_` are of
  std::uint64_t unknown_ = 0;
  SampleSet done_, twice_;
  std::vector<std::vector<SampleRange>> later_;  ///< of the rounds after it
};

/// By fragment.
using Ledger = std::vector<FragmentLedger>;

/// In a round of every fragment: all of the model has been trained on it.
[[nodiscard]] SampleSet done_everywhere(const Ledger& ledger);
/// In a round of any fragment.
[[nodiscard]] SampleSet done_anywhere(const Ledger& ledger);
/// More than once in rounds of one fragment.
[[nodiscard]] SampleSet done_twice(const Ledger& ledger);
/// Rounds of which it is not known what they were made of, all fragments together.
[[nodiscard]] std::uint64_t unknown_rounds(const Ledger& ledger);

}  // namespace isthmus::outer_sync::protocol
