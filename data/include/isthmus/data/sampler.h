#pragma once
// Maps sequence numbers to windows of a data set, as a pure function: nothing has to be stored to resume, and
// no shuffled array is kept. Window i of seq_len T is the tokens [i*T, i*T + T + 1): T inputs and, one
// further, T targets.

#include <cstdint>
#include <span>

namespace isthmus::data {

/// Full windows in `tokens` consecutive tokens.
[[nodiscard]] constexpr std::uint64_t window_count(std::uint64_t tokens, std::uint64_t seq_len) {
  return tokens == 0 ? 0 : (tokens - 1) / seq_len;
}

/// How the windows of an epoch are ordered. Drawing single windows would make every read short and scattered,
/// and decompress a block for one window. So blocks come in an order drawn anew for each epoch, and windows
/// are shuffled uniformly within each `group` of consecutive blocks.
struct Shuffle {
  std::uint64_t block = 0;  ///< windows in a block; 0: draw from all windows
  std::uint64_t group = 1;  ///< blocks that are shuffled together, >= 1
  /// Windows of a full group; 0 if the order is drawn from all.
  [[nodiscard]] std::uint64_t group_windows() const { return block * group; }
};

/// Sequence k of replica m of M, counted by the replica itself, has number g in the run; epoch g / windows
/// takes every window once, in an order of its own. Without groups g = k*M + m: two replicas never share a
/// sequence within an epoch, at any batch size and speed, and with equal batches the sequences of a step
/// depend only on the total batch size. With groups of W windows replicas take W sequences in turn, g = ((k /
/// W)*M + m)*W + k % W, so that one replica reads each group.
class Sampler {
 public:
  struct Place {
    std::uint64_t epoch;
    std::uint64_t window;
  };
  /// windows, replicas >= 1; replica < replicas. A data set that fits in one group is drawn from as a whole.
  Sampler(std::uint64_t windows, std::uint64_t replica, std::uint64_t replicas, std::uint64_t seed,
          Shuffle shuffle = {});
  /// With groups, this computes the whole order of the group.
  [[nodiscard]] Place at(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t epoch(std::uint64_t sequence) const { return number_of(sequence) / windows_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] bool has_groups() const { return shuffle_.block > 0; }

  // With groups only:

  /// Consecutive sequences of this replica in one group.
  struct Visit {
    std::uint64_t epoch, group;
    std::uint64_t rank;  ///< position of its first sequence in the group's order
    std::uint64_t end;   ///< the first sequence after it
  };
  /// The rest of the visit that contains `sequence`, from `sequence` on.
  [[nodiscard]] Visit visit(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t windows_of(std::uint64_t group) const;
  /// Writes the order of the group's windows to out[0 .. windows_of(group)): the window (numbered as its
  /// blocks are laid out) at each position. `out` has room for a full group and one more block.
  void order(std::uint64_t epoch, std::uint64_t group, std::span<std::uint32_t> out) const;
  /// Block number `rank` of a group: the windows [first, first + count).
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

/// A track as parameters of a Sampler. The first `replicas` tracks are the replicas' shares of one order of
/// all data; each further set of `replicas` tracks, for replicas beyond the planned number, shares the order
/// of the next seed.
struct Share {
  std::uint64_t replica, seed;
};
[[nodiscard]] constexpr Share share_of(std::uint64_t track, std::uint64_t replicas, std::uint64_t seed) {
  return {track % replicas, seed + track / replicas};
}

/// The order in which the tracks of a run visit a data set.
struct WindowOrder {
  std::uint64_t windows, replicas;  ///< >= 1
  std::uint64_t seed;
  Shuffle shuffle = {};
  [[nodiscard]] Sampler of_track(std::uint64_t track) const {
    const auto share = share_of(track, replicas, seed);
    return {windows, share.replica, replicas, share.seed, shuffle};
  }
};

/// Window `index` of `count` evenly spaced ones (index < count <= windows): the same on every replica and in
/// every run.
[[nodiscard]] std::uint64_t heldout_window(std::uint64_t index, std::uint64_t count, std::uint64_t windows);

}  // namespace isthmus::data
