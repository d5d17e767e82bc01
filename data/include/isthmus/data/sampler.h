#pragma once
// Which window of a data set a sequence is: a pure function of the step, so nothing has to be stored to
// resume, and no shuffled array is kept. A window i of seq_len T is the tokens [i*T, i*T + T + 1): T inputs
// and, one further, T targets.

#include <cstdint>
#include <span>

namespace isthmus::data {

/// Full windows in a run of tokens.
[[nodiscard]] constexpr std::uint64_t window_count(std::uint64_t tokens, std::uint64_t seq_len) {
  return tokens == 0 ? 0 : (tokens - 1) / seq_len;
}

/// How the windows of an epoch are put in order. Drawn one by one from all of them, every read would be a
/// short one somewhere on the disk, and a compressed block would be unpacked for one window. So what lies
/// together is read together: windows are taken in blocks, blocks come in an order drawn anew for each epoch,
/// and among the windows of `group` blocks that come one after another every order is as likely.
struct Shuffle {
  std::uint64_t block = 0;  ///< windows that lie together; 0: draw from all windows
  std::uint64_t group = 1;  ///< blocks, >= 1
  /// Windows of a full group; 0 where the order is drawn from all.
  [[nodiscard]] std::uint64_t group_windows() const { return block * group; }
};

/// Sequence k of replica m of M, counted by the replica itself, is number g of the run; epoch g / windows
/// takes every window once, in an order of its own. With an order drawn from all windows g = k*M + m: two
/// replicas never share a sequence within an epoch, whatever batches they make of theirs and however fast
/// they are; and where all batches are equal, what all of them see at a step depends on their sum alone. With
/// groups of W windows replicas take W sequences by turns, g = ((k / W)*M + m)*W + k % W, so that each group
/// is read by one of them.
class Sampler {
 public:
  struct Place {
    std::uint64_t epoch;
    std::uint64_t window;
  };
  /// windows, replicas >= 1; replica < replicas. A data set that one group holds is drawn from as a whole.
  Sampler(std::uint64_t windows, std::uint64_t replica, std::uint64_t replicas, std::uint64_t seed,
          Shuffle shuffle = {});
  /// With groups this takes as long as the group's order.
  [[nodiscard]] Place at(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const { return number_of(sequence) / windows_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] bool has_groups() const { return shuffle_.block > 0; }

  // With groups only:

  /// Sequences that follow one another here and in one group.
  struct Visit {
    std::uint64_t epoch, group;
    std::uint64_t rank;  ///< of its first sequence in the group's order
    std::uint64_t end;   ///< the first sequence that is no longer of it
  };
  /// From `sequence` on.
  [[nodiscard]] Visit visit(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t windows_of(std::uint64_t group) const;
  /// Which of the group's windows, counted as its blocks are laid out, comes at which rank: the first
  /// windows_of(group) of `out`, which has room for more than a full group by one block.
  void order(std::uint64_t epoch, std::uint64_t group, std::span<std::uint32_t> out) const;
  /// Block `rank` of a group: its windows are [first, first + count).
  struct Block {
    std::uint64_t first, count;
  };
  [[nodiscard]] std::uint64_t blocks_of(std::uint64_t group) const;
  [[nodiscard]] Block block(std::uint64_t epoch, std::uint64_t group, std::uint64_t rank) const;

 private:
  [[nodiscard]] std::uint64_t number_of(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t key(std::uint64_t epoch) const;

  std::uint64_t windows_, replica_, replicas_, seed_;
  Shuffle shuffle_;
  std::uint64_t full_blocks_ = 0, groups_ = 1;
};

/// A track, as a Sampler knows it: the first `replicas` tracks are the replicas' shares of one order of all
/// data; those behind them, of replicas more than the run was planned for, are shares of another order each,
/// by seeds that count on.
struct Share {
  std::uint64_t replica, seed;
};
[[nodiscard]] constexpr Share share_of(std::uint64_t track, std::uint64_t replicas, std::uint64_t seed) {
  return {track % replicas, seed + track / replicas};
}

/// How the tracks of a run go through a data set.
struct WindowOrder {
  std::uint64_t windows, replicas;  ///< >= 1
  std::uint64_t seed;
  Shuffle shuffle = {};
  [[nodiscard]] Sampler of_track(std::uint64_t track) const {
    const auto share = share_of(track, replicas, seed);
    return {windows, share.replica, replicas, share.seed, shuffle};
  }
};

/// Window `index` of `count` evenly spaced ones (index < count <= windows): the same for every replica and
/// run.
[[nodiscard]] std::uint64_t heldout_window(std::uint64_t index, std::uint64_t count, std::uint64_t windows);

}  // namespace isthmus::data
