#pragma once
// Which window of the corpus a sequence is: a pure function of the step, so nothing has to be stored to
// resume. A window i of seq_len T is the tokens [i*T, i*T + T + 1): T inputs and, one further, T targets.

#include <cstdint>

namespace isthmus::data {

/// Full windows in a run of tokens.
[[nodiscard]] constexpr std::uint64_t window_count(std::uint64_t tokens, std::uint64_t seq_len) {
  return tokens == 0 ? 0 : (tokens - 1) / seq_len;
}

/// Sequence k of replica m of M, counted by the replica itself, is number g = k*M + m of the run; epoch g /
/// windows takes every window once, in an order of its own. So two replicas never share a sequence within an
/// epoch, whatever batches they make of theirs and however fast they are; and where all batches are equal,
/// what all of them see at a step depends on their sum alone.
class Sampler {
 public:
  struct Place {
    std::uint64_t epoch;
    std::uint64_t window;
  };
  /// windows, replicas >= 1; replica < replicas.
  Sampler(std::uint64_t windows, std::uint64_t replica, std::uint64_t replicas, std::uint64_t seed)
      : windows_(windows), replica_(replica), replicas_(replicas), seed_(seed) {}
  [[nodiscard]] Place at(std::uint64_t sequence) const;
  [[nodiscard]] std::uint64_t windows() const { return windows_; }

 private:
  std::uint64_t windows_, replica_, replicas_, seed_;
};

/// Window `index` of `count` evenly spaced ones (index < count <= windows): the same for every replica and
/// run.
[[nodiscard]] std::uint64_t heldout_window(std::uint64_t index, std::uint64_t count, std::uint64_t windows);

}  // namespace isthmus::data
