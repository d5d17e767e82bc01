#pragma once
// Chooses the sequences that a replica trains on next: its own track of the data, and its part of tracks
// without an owner. A pure function of its views and of what it has asked for.

#include <cstdint>
#include <deque>
#include <vector>

#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/views.h"

namespace isthmus::outer_sync::protocol {

/// A view leases every track of the planned replicas to the trainer with its slot. A track without such a
/// trainer is dealt in blocks, by turns, to all trainers, so that all tracks advance at one pace. Sequences
/// that are done, or that a member of the view was given before, are not given again. (A trainer beyond the
/// planned replicas has a track of its own, which is never dealt to others.)
class WorkOrder {
 public:
  /// Sequences that one trainer gets at a time from a track without an owner.
  static constexpr std::uint64_t block = 1024;
  /// More than the sequences of any track, so that a track always has free ones.
  static constexpr std::uint64_t endless = std::uint64_t{1} << 62;
  static_assert(endless > SampleRange::max_sequences);

  /// Frees all sequences given before: the parameters trained on them are void.
  void forget() { *this = {}; }
  /// Sequences that a resumed replica was given and has trained on, and that are not done.
  void restore(SampleSet trained) { given_ = std::move(trained); }

  /// The next sequences, at least one and at most `most`. Requires that a view has begun.
  [[nodiscard]] SampleRange next(std::uint64_t most);

  /// Call before a view ends: from now on this replica gets sequences of its own track only, so that the
  /// other tracks can be dealt. Enters in `sealed` what was given and is not done by its ledger, and what may
  /// still be given of the own track before the next view begins, in which the replica may have another slot.
  void seal(Sealed& sealed);
  /// Call when a view has begun.
  void deal(const NewView& message, MemberIndex self);

 private:
  /// Free sequences of one track, in order; the last range is endless.
  class Free {
   public:
    explicit Free(const std::vector<SampleRange>& ranges = {}) : ranges_(ranges.begin(), ranges.end()) {}
    [[nodiscard]] SampleRange take(std::uint64_t most);
    void skip(std::uint64_t count);
    /// The first `count` sequences.
    [[nodiscard]] SampleSet first(std::uint64_t count) const;

   private:
    std::deque<SampleRange> ranges_;
  };
  struct Orphan {
    Free free;
    std::uint64_t skip;  ///< sequences that the other trainers get before this one's next block
  };
  [[nodiscard]] SampleRange give(const SampleRange& range);
  void next_turn();

  static constexpr std::uint64_t reserved = 16 * block;

  SampleSet given_;
  Free own_;
  std::vector<Orphan> orphans_;
  std::uint64_t trainers_ = 1;
  bool own_only_ = false;
  std::size_t turn_ = 0;    ///< 0: its own track; otherwise index of the orphan, from 1
  std::uint64_t left_ = 0;  ///< sequences left in this turn
};

}  // namespace isthmus::outer_sync::protocol
