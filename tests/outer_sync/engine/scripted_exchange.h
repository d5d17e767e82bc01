#pragma once
// A RoundExchange in which the test plays the other members: their contributions, which contributions a
// result includes, and when rounds commit.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "replicas.h"

namespace isthmus::outer_sync {

class ScriptedExchange final : public RoundExchange {
 public:
  ScriptedExchange(const FragmentLayout& layout, protocol::CodecPlan codecs)
      : layout_(layout), codecs_(codecs), reducer_(layout, codecs) {}

  /// Whether rounds commit; asked again whenever the loop waits.
  std::function<bool(FragmentId, protocol::Round)> commits = [](FragmentId, protocol::Round) { return true; };
  /// Whether the next view is forming, so that the result may take a while.
  std::function<bool(FragmentId, protocol::Round)> view_forms = [](FragmentId, protocol::Round) {
    return false;
  };
  /// Whether the result includes this replica's chunk. Results without it are zeros.
  std::function<bool(ChunkId, protocol::Round)> includes = [](ChunkId, protocol::Round) { return true; };

  /// Whether this replica's chunk is left out of the result because of its norm.
  std::function<bool(ChunkId, protocol::Round)> rejects = [](ChunkId, protocol::Round) { return false; };

  /// If set, called by the thread that contributes a chunk.
  std::function<void()> before_contribute;

  struct Contribution {
    ChunkId chunk;
    protocol::Round round;
    std::uint64_t weight;
    protocol::SharedBytes bytes;
    SampleSet samples{};
    friend bool operator==(const Contribution&, const Contribution&) = default;
  };
  std::vector<Contribution> contributions;  ///< all contributions, possibly from another thread
  std::map<std::pair<FragmentId, protocol::Round>, std::vector<protocol::SharedBytes>> results;
  std::map<FragmentId, protocol::FragmentState> chains;
  StateSource source;
  std::size_t served = 0, waits = 0;
  std::uint64_t others_at = 0;  ///< the others' step when this replica comes back to them

  /// Whether this replica has a partner in an exchange of the fragment at this step.
  std::function<bool(FragmentId, std::uint64_t)> has_partner = [](FragmentId, std::uint64_t) {
    return false;
  };
  using Exchanges = std::map<std::pair<FragmentId, std::uint64_t>, protocol::Exchanged>;
  Exchanges exchanged;   ///< what this replica has handed in, by fragment and step
  Exchanges of_partner;  ///< what the partner has sent; the loop takes it from here

  /// Rounds of the fragment to which this replica contributed.
  [[nodiscard]] std::vector<protocol::Round> rounds_of(FragmentId p) const {
    std::vector<protocol::Round> rounds;
    for (const auto& contribution : contributions) {
      if (contribution.chunk == layout_.chunks_of(p).first) rounds.push_back(contribution.round);
    }
    return rounds;
  }

  void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override {
    if (before_contribute) before_contribute();
    const std::lock_guard lock(mutex_);
    for (const auto& other : contributions)
      EXPECT_FALSE(other.chunk == chunk && other.round == round)
          << "chunk " << chunk << " was contributed twice";
    contributions.push_back({chunk, round, weight, std::move(bytes), samples});
    contributed_.notify_all();
  }
  /// Waits until `count` chunks have been contributed; false if that takes longer than `within`.
  [[nodiscard]] bool has(std::size_t count, std::chrono::milliseconds within = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    return contributed_.wait_for(lock, within, [&] { return contributions.size() >= count; });
  }

  Awaited wait(FragmentId p, protocol::Round round, bool can_train_on) override {
    ++waits;
    if (!commits(p, round)) return {std::nullopt, false};
    if (can_train_on && view_forms(p, round)) return {};
    RoundResult result;
    const auto chunks = layout_.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto own = contribution_of(k, round);
      result.rejected.push_back(own && rejects(k, round));
      result.included.push_back(own && !result.rejected.back() && includes(k, round));
      const auto of_one = result.included.back() ? own : zeros(k, round);
      const std::vector<protocol::SharedBytes> all = {of_one};
      const std::vector<std::uint64_t> weights = {1};
      result.chunks.push_back(reducer_.reduce(k, round, all, weights).bytes);
    }
    // A round has one result, the same at every call.
    result.chunks = results.emplace(std::pair(p, round), result.chunks).first->second;
    return {std::move(result)};
  }

  bool begin_exchange(FragmentId p, std::uint64_t step) override { return has_partner(p, step); }
  void exchange(ChunkId chunk, std::uint64_t step, const protocol::SharedBytes& bytes,
                std::uint64_t weight) override {
    const std::lock_guard lock(mutex_);
    const auto p = layout_.fragment_of(chunk);
    auto& part = exchanged.try_emplace({p, step}, protocol::Exchanged{p, step, {}, weight}).first->second;
    part.chunks.push_back(bytes);
  }
  std::optional<protocol::Exchanged> take_exchanged(FragmentId p, std::uint64_t step) override {
    auto found = of_partner.extract({p, step});
    if (!found) return {};
    return std::move(found.mapped());
  }
  void applied(FragmentId p, protocol::Round round, const Digest& chain, std::vector<SampleRange>) override {
    EXPECT_TRUE(!chains.contains(p) || round == chains[p].round + 1) << "rounds must be applied in order";
    chains[p] = {round, chain};
  }
  void serve_state_from(StateSource its_source) override { source = std::move(its_source); }
  void serve() override { ++served; }
  std::uint64_t agreed_step() const override { return others_at; }
  Reducer& reducer() override { return reducer_; }

 private:
  protocol::SharedBytes contribution_of(ChunkId chunk, protocol::Round round) {
    const std::lock_guard lock(mutex_);
    for (const auto& contribution : contributions) {
      if (contribution.chunk == chunk && contribution.round == round) return contribution.bytes;
    }
    return nullptr;
  }
  protocol::SharedBytes zeros(ChunkId chunk, protocol::Round round) {
    const AlignedVector<float> values(layout_.chunk(chunk).size, 0.0F);
    const auto& codec = codecs_.of(round);
    Bytes bytes(quant::encoded_size(codec, values.size()));
    EXPECT_FALSE(quant::encode(codec, values, {}, {}, bytes));
    return std::make_shared<const Bytes>(std::move(bytes));
  }

  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  Reducer reducer_;
  std::mutex mutex_;
  std::condition_variable contributed_;
};

/// One replica with a ScriptedExchange.
class LoneReplica {
 public:
  /// Makes the outer state; nullptr: on the host.
  using MakeState = std::function<std::unique_ptr<OuterState>(LoneReplica&)>;

  LoneReplica(OuterConfig its_config, FragmentLayout its_layout, const MakeState& make_state = nullptr)
      : config(std::move(its_config)),
        layout(std::move(its_layout)),
        exchange(layout, codec_plan(config)),
        local(initial_parameters(layout)),
        loop(make_state ? std::make_unique<OuterLoop>(config, layout, make_state(*this), exchange, trace_)
                        : std::make_unique<OuterLoop>(config, layout, local, exchange, trace_)) {}

  /// One inner step that moves every element by `move` (in the warm-up: with `move` as the gradient).
  void step(float move, std::uint64_t tokens = 1) {
    step([move](std::uint64_t) { return move; }, tokens);
  }
  /// One inner step with a move for each element.
  void step(const std::function<float(std::uint64_t)>& move, std::uint64_t tokens = 1) {
    std::vector<float> change(layout.buffer_size(), 0.0F);
    for (const auto& fragment : layout.fragments()) {
      for (auto i = fragment.begin; i < fragment.end(); ++i) change[i] = move(i);
    }
    if (loop->synchronous()) loop->average_gradients(change, tokens);
    for (std::size_t i = 0; i < change.size(); ++i) local.values[i] += change[i];
    loop->after_step(tokens);
  }

  virtual ~LoneReplica() = default;

  const OuterConfig config;
  const FragmentLayout layout;
  ScriptedExchange exchange;
  PlainParameters local;

 private:
  Trace trace_;

 public:
  std::unique_ptr<OuterLoop> loop;
};

/// Starts with all parameters zero at step 0, as if copied from others.
inline void begin_at_zero(LoneReplica& replica) {
  for (FragmentId p = 0; p < replica.layout.fragment_count(); ++p) {
    const auto zero = std::make_shared<const AlignedVector<float>>(replica.layout.fragment(p).size, 0.0F);
    replica.loop->install({p, {}, zero, zero});
  }
  replica.loop->begin_at(0);
}

/// Plain averaging, for which every number in these tests is exact.
inline OuterConfig averaging(std::int64_t fragments, std::int64_t every, std::int64_t delay,
                             std::optional<double> alpha) {
  auto config = config_of(fragments, every, delay, alpha);
  config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
  config.final_sync = false;
  return config;
}

}  // namespace isthmus::outer_sync
