#pragma once
// Which training sequences are in the run's global parameters. A contribution carries its sequences, and the
// round's result lists them, so all members that apply the same rounds have the same ledger, and none of it
// rests on one member's word (docs/protocol.md, "The ledger").

#include <cstdint>
#include <vector>

#include "isthmus/base/samples.h"

namespace isthmus::outer_sync::protocol {

/// Contents of one fragment's rounds, up to a certain round.
class FragmentLedger {
 public:
  /// The samples of this many newest rounds are stored separately, so that the ledger of a few rounds ago can
  /// be restored: newcomers may be at one of these.
  static constexpr std::size_t max_pending_ranges = 8;

  FragmentLedger() = default;
  /// A fragment at `round` with unknown contents.
  explicit FragmentLedger(std::uint64_t round) : base_(round), unknown_(round) {}

  /// Newest round included.
  [[nodiscard]] std::uint64_t round() const { return base_ + later_.size(); }
  /// Appends a round with these samples, listed contributor by contributor.
  void add(std::vector<SampleRange> samples);
  /// Appends a round with unknown contents. Used by a member that copies the state, until its first view
  /// brings the contents.
  void skip();
  /// Number of rounds with unknown contents.
  [[nodiscard]] std::uint64_t unknown() const { return unknown_; }
  /// Returns to an earlier round. False, without a change, if that round is too long ago.
  [[nodiscard]] bool cut(std::uint64_t round);

  /// Samples in at least one round (`done`), and samples that are there more than once (`twice`).
  [[nodiscard]] SampleSet done() const;
  [[nodiscard]] SampleSet twice() const;
  /// Whether a received ledger is valid.
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

  std::uint64_t base_ = 0;  ///< the last round included in `done_` and `twice_`
  std::uint64_t unknown_ = 0;
  SampleSet done_, twice_;
  std::vector<std::vector<SampleRange>> later_;  ///< samples of the rounds after it
};

/// By fragment.
using Ledger = std::vector<FragmentLedger>;

/// Samples in a round of every fragment: all of the model has been trained on them.
[[nodiscard]] SampleSet done_everywhere(const Ledger& ledger);
/// Samples in a round of any fragment.
[[nodiscard]] SampleSet done_anywhere(const Ledger& ledger);
/// Samples that are more than once in the rounds of one fragment.
[[nodiscard]] SampleSet done_twice(const Ledger& ledger);
/// Rounds with unknown contents, summed over the fragments.
[[nodiscard]] std::uint64_t unknown_rounds(const Ledger& ledger);

}  // namespace isthmus::outer_sync::protocol
