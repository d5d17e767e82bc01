#pragma once
// What a replica trains on next: its own track of the data, and its part of the tracks that nobody has any
// more. A pure function of the views it has been in and of what it was asked for.

#include <cstdint>
#include <deque>
#include <vector>

#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// A view leases every track of the planned replicas: to the trainer whose slot it is, or, where there is
/// none, in blocks by turns to all trainers, so that all tracks go on at one pace. Nothing is given out twice
/// that is done, or that a member of the view has been given before. (Who has a track of more replicas than
/// were planned goes through it alone: others need not.)
class WorkOrder {
 public:
  /// Sequences of a track without an owner that one trainer gets at a time.
  static constexpr std::uint64_t block = 1024;
  /// A track has fewer sequences, so that something of it is always free.
  static constexpr std::uint64_t endless = std::uint64_t{1} << 62;
  static_assert(endless > SampleRange::max_sequences);

  /// What was given out before is void (the parameters that were trained on it are): it is free again.
  void forget() { *this = {}; }
  /// Given out and trained on by a replica that is resumed, and not done.
  void restore(SampleSet trained) { given_ = std::move(trained); }

  /// The next sequences, at least one and at most `most`. There must have been a view.
  [[nodiscard]] SampleRange next(std::uint64_t most);

  /// A view is to end: from here on this replica gets sequences of its own track only, so that whoever deals
  /// the others knows what is free. Says in `sealed`, by its ledger, what was given out and is not done, and
  /// what it may be given of its own track until the view begins: it may have another slot then.
  void seal(Sealed& sealed);
  /// A view has begun.
  void deal(const NewView& message, MemberIndex self);

 private:
  /// What is free of one track, in order; the last range is endless.
  class Free {
   public:
    explicit Free(const std::vector<SampleRange>& ranges = {}) : ranges_(ranges.begin(), ranges.end()) {}
    [[nodiscard]] SampleRange take(std::uint64_t most);
    void skip(std::uint64_t count);
    /// The first ones.
    [[nodiscard]] SampleSet first(std::uint64_t count) const;

   private:
    std::deque<SampleRange> ranges_;
  };
  struct Orphan {
    Free free;
    std::uint64_t skip;  ///< sequences of other trainers that come before this one's next block
  };
  [[nodiscard]] SampleRange give(const SampleRange& range);
  void next_turn();

  static constexpr std::uint64_t reserved = 16 * block;

  SampleSet given_;
  Free own_;
  std::vector<Orphan> orphans_;
  std::uint64_t trainers_ = 1;
  bool own_only_ = false;
  std::size_t turn_ = 0;    ///< 0: its own track; else an orphan's, counted from 1
  std::uint64_t left_ = 0;  ///< sequences of this turn
};

}  // namespace isthmus::outer_sync::protocol
