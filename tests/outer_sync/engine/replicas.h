#pragma once
// Replicas in one process: real outer loops, members and reducers, each replica on its own thread, joined by
// a router that calls instead of sending. A table gives their inner steps.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

class PlainParameters final : public LocalParameters {
 public:
  explicit PlainParameters(std::vector<float> initial) : values(std::move(initial)) {}
  std::span<const float> read(Range range) override { return part(range); }
  std::span<float> modify(Range range) override {
    ++open;
    return part(range);
  }
  void modified(Range) override { --open; }

  std::vector<float> values;
  int open = 0;  ///< calls of `modify` without `modified` yet

 private:
  std::span<float> part(Range range) { return std::span(values).subspan(range.begin, range.size); }
};

/// An inner optimizer's moments, in vectors.
class PlainMoments final : public InnerMoments {
 public:
  PlainMoments(std::size_t size, float first_value, float second_value, std::uint64_t its_steps)
      : first(size, first_value), second(size, second_value), count(its_steps) {}
  std::uint64_t steps() const override { return count; }
  std::span<const float> first_moment(Range range) override { return part(first, range); }
  std::span<const float> second_moment(Range range) override { return part(second, range); }
  void set_moments(Range range, std::span<const float> to_first, std::span<const float> to_second) override {
    std::ranges::copy(to_first, part(first, range).begin());
    std::ranges::copy(to_second, part(second, range).begin());
  }
  void set_steps(std::uint64_t to) override { count = to; }

  std::vector<float> first, second;
  std::uint64_t count;

 private:
  static std::span<float> part(std::vector<float>& values, Range range) {
    return std::span(values).subspan(range.begin, range.size);
  }
};

class MemoryNetwork {
 public:
  MemoryNetwork(const FragmentLayout& layout, protocol::CodecPlan codecs, std::size_t members);
  ~MemoryNetwork();
  /// Begins the view; every member has applied the rounds in `fragments`.
  void begin(const std::vector<protocol::FragmentState>& fragments);
  [[nodiscard]] RoundExchange& exchange(std::size_t member);
  /// Digests that the member has reported; not while it runs.
  [[nodiscard]] const std::vector<protocol::StateDigest>& digests(std::size_t member) const;
  /// Makes all waits throw that can no longer be answered.
  void fail();

  /// Sees every contribution before it is routed.
  std::function<void(std::size_t member, ChunkId, protocol::Round, const Bytes&)> on_contribution;

 private:
  class Port;
  void route();

  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::vector<std::unique_ptr<Port>> ports_;
};

struct ReplicaState {
  std::vector<float> local;
  SavedOuterLoop outer;
};

class Replicas {
 public:
  /// The inner step of element `i` of replica `m`: its gradient in the warm-up, afterwards its move by the
  /// inner optimizer.
  using Table = std::function<float(std::size_t m, std::uint64_t step, std::size_t i)>;

  Replicas(OuterConfig config, FragmentLayout layout, std::size_t members, Table table);
  /// Continues from saved states.
  Replicas(OuterConfig config, FragmentLayout layout, Table table, const std::vector<ReplicaState>& states);

  /// Trains all replicas up to the end of `last_step`, each on its own thread. Rethrows the first replica's
  /// error.
  void train(std::uint64_t last_step);
  void finish();
  [[nodiscard]] std::vector<ReplicaState> save();

  struct Replica {
    Replica(const OuterConfig& config, const FragmentLayout& layout, std::vector<float> initial,
            RoundExchange& exchange, Trace& trace)
        : local(std::move(initial)), loop(config, layout, local, exchange, trace) {}
    PlainParameters local;
    OuterLoop loop;
    std::vector<std::vector<float>> globals, locals;  ///< after each step
  };
  [[nodiscard]] Replica& at(std::size_t m) { return *replicas_.at(m); }
  [[nodiscard]] std::size_t size() const { return replicas_.size(); }
  [[nodiscard]] MemoryNetwork& network() { return network_; }
  [[nodiscard]] const std::vector<protocol::StateDigest>& digests(std::size_t m) const {
    return network_.digests(m);
  }
  [[nodiscard]] const FragmentLayout& layout() const { return layout_; }
  /// The replicas' common hash; fails the test if their hashes differ.
  [[nodiscard]] Digest global_hash();
  /// Fails the test unless global parameters and chains are equal on all replicas after every step.
  void expect_agreement();

  /// Step size of the mock's inner optimizer in the warm-up.
  static constexpr float warmup_rate = 0.125F;

 private:
  void in_parallel(const std::function<void(std::size_t)>& work);
  void step(std::size_t m);

  OuterConfig config_;
  FragmentLayout layout_;
  Table table_;
  Trace trace_;
  MemoryNetwork network_;
  std::vector<std::unique_ptr<Replica>> replicas_;
};

/// Tokens per inner step of a mock replica.
inline constexpr std::uint64_t tokens_per_step = 96;

/// One inner step of the mock, including the outer loop's part.
void mock_step(OuterLoop& loop, PlainParameters& local, const FragmentLayout& layout,
               const Replicas::Table& table, std::size_t m);

/// Pseudo-random moves in [-1, 1), equal on every machine.
[[nodiscard]] inline float random_step(std::size_t m, std::uint64_t step, std::size_t i) {
  return 2 * random_unit(7 + m, step, i) - 1;
}
/// Streaming DiLoCo in fp32 with small chunks; the carry merge if alpha is not given.
[[nodiscard]] OuterConfig config_of(std::int64_t fragments, std::int64_t every, std::int64_t delay,
                                    std::optional<double> alpha);
/// P fragments of a few chunks, the last one short, with padding between them.
[[nodiscard]] FragmentLayout layout_of(FragmentId fragments);
/// Initial parameters of all replicas.
[[nodiscard]] std::vector<float> initial_parameters(const FragmentLayout& layout);

}  // namespace isthmus::outer_sync
