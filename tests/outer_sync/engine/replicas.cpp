#include "replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/protocol/member_actions.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync {

using protocol::MemberIndex;
using protocol::Round;
using protocol::SharedBytes;

// ---- the network ----

class MemoryNetwork::Port final : public RoundExchange {
 public:
  Port(MemoryNetwork& network, std::size_t index)
      : network_(network), index_(index), reducer_(network.layout_, network.codecs_) {}

  void contribute(ChunkId chunk, Round round, SharedBytes bytes, std::uint64_t weight,
                  const SampleSet& samples) override {
    const std::lock_guard lock(network_.mutex_);
    if (network_.on_contribution) network_.on_contribution(index_, chunk, round, *bytes);
    member_->contribute(chunk, round, bytes, weight, 0, samples);
    network_.route();
  }
  Awaited wait(FragmentId fragment, Round round, bool /*can_train_on*/) override {
    std::unique_lock lock(network_.mutex_);
    const std::pair key{fragment, round};
    network_.changed_.wait(lock, [&] { return network_.failed_ || results_.contains(key); });
    if (!results_.contains(key)) throw Error(ErrorKind::network, "another replica has failed");
    return {std::move(results_.extract(key).mapped())};
  }
  void applied(FragmentId fragment, Round round, const Digest& chain,
               std::vector<SampleRange> samples) override {
    const std::lock_guard lock(network_.mutex_);
    member_->applied(fragment, round, chain, std::move(samples));
  }
  void checked(const protocol::StateDigest& reported) override { digests.push_back(reported); }
  void serve_state_from(StateSource) override {}
  void serve() override {}
  Reducer& reducer() override { return reducer_; }

  /// Carries out one round of actions; whether there were any.
  bool act() {
    return protocol::carry_out_actions(*member_, [this](auto& action) { carry_out(action); });
  }

  std::unique_ptr<protocol::Member> member_;
  std::vector<protocol::StateDigest> digests;  ///< of its own thread

 private:
  protocol::Member& peer(MemberIndex m) { return *network_.ports_.at(m)->member_; }
  [[nodiscard]] MemberIndex self() const { return static_cast<MemberIndex>(index_); }

  void carry_out(const protocol::SendChunk& send) {
    const auto refused = peer(send.peer).receive(self(), send.message);
    EXPECT_FALSE(refused) << *refused;
  }
  void carry_out(const protocol::SendAck& ack) { peer(ack.peer).acknowledged(self(), ack.view, ack.key); }
  void carry_out(const protocol::SendBegun& begun) { peer(begun.peer).peer_begun(self(), begun.view); }
  void carry_out(const protocol::Reduce& job) {
    const auto made = reducer_.reduce(job.chunk, job.round, job.contributions, job.weights, job.reject);
    member_->reduced(job.view, job.chunk, job.round, made.bytes, made.measured);
  }
  void carry_out(const protocol::ForgetResidual& forgotten) { reducer_.forget(forgotten.chunk); }
  void carry_out(protocol::Deliver& round) {
    results_[{round.fragment, round.round}] = {.chunks = std::move(round.results),
                                               .included = std::move(round.included),
                                               .rejected = std::move(round.rejected),
                                               .samples = std::move(round.samples)};
  }

  MemoryNetwork& network_;
  std::size_t index_;
  Reducer reducer_;
  std::map<std::pair<FragmentId, Round>, RoundResult> results_;
};

MemoryNetwork::MemoryNetwork(const FragmentLayout& layout, protocol::CodecPlan codecs, std::size_t members)
    : layout_(layout), codecs_(codecs) {
  for (std::size_t m = 0; m < members; ++m) ports_.push_back(std::make_unique<Port>(*this, m));
}

MemoryNetwork::~MemoryNetwork() = default;

RoundExchange& MemoryNetwork::exchange(std::size_t member) { return *ports_.at(member); }

const std::vector<protocol::StateDigest>& MemoryNetwork::digests(std::size_t member) const {
  return ports_.at(member)->digests;
}

/// Like a coordinator: all members seal the first view, and their answers form it.
void MemoryNetwork::begin(const std::vector<protocol::FragmentState>& fragments) {
  std::vector<protocol::SealedMember> answers;
  for (std::size_t m = 0; m < ports_.size(); ++m) {
    ports_[m]->member_ =
        std::make_unique<protocol::Member>(layout_, codecs_, protocol::ClosingRule{}, fragments);
    answers.push_back(
        {{std::to_string(m), 1, "", static_cast<std::uint16_t>(m)}, *ports_[m]->member_->seal(1)});
  }
  auto view = protocol::plan_view(layout_, answers).message;
  view.view.number = 1;
  for (std::size_t m = 0; m < ports_.size(); ++m) {
    const auto entry = ports_[m]->member_->activate(view, static_cast<MemberIndex>(m));
    EXPECT_EQ(entry, protocol::Member::Entry::begun);
  }
  route();
}

void MemoryNetwork::route() {
  for (bool busy = true; busy;) {
    busy = false;
    for (auto& port : ports_) busy = port->act() || busy;
  }
  changed_.notify_all();
}

void MemoryNetwork::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

// ---- the replicas ----

OuterConfig config_of(std::int64_t fragments, std::int64_t every, std::int64_t delay,
                      std::optional<double> alpha) {
  OuterConfig config;
  config.num_fragments = fragments;
  config.sync_every = every;
  config.sync_delay = delay;
  config.merge = alpha ? "alpha" : "carry";
  config.merge_alpha = alpha.value_or(config.merge_alpha);
  config.codec = "fp32";
  config.codec_block = 16;
  config.chunk_elements = 16;
  config.resolve();
  return config;
}

FragmentLayout layout_of(FragmentId fragments) {
  std::vector<Range> ranges;
  for (FragmentId p = 0; p < fragments; ++p) ranges.push_back({p * 50, 40 + p});
  return {std::move(ranges), 16};
}

std::vector<float> initial_parameters(const FragmentLayout& layout) {
  std::vector<float> values(layout.buffer_size(), 0.0F);
  for (const auto& fragment : layout.fragments()) {
    for (auto i = fragment.begin; i < fragment.end(); ++i) values[i] = random_unit(1, 0, i) - 0.5F;
  }
  return values;
}

Replicas::Replicas(OuterConfig config, FragmentLayout layout, std::size_t members, Table table)
    : Replicas(std::move(config), layout, std::move(table),
               std::vector<ReplicaState>(members, ReplicaState{initial_parameters(layout), {}})) {}

Replicas::Replicas(OuterConfig config, FragmentLayout layout, Table table,
                   const std::vector<ReplicaState>& states)
    : config_(std::move(config)),
      layout_(std::move(layout)),
      table_(std::move(table)),
      network_(layout_, codec_plan(config_), states.size()) {
  for (std::size_t m = 0; m < states.size(); ++m) {
    auto& replica = *replicas_.emplace_back(
        std::make_unique<Replica>(config_, layout_, states[m].local, network_.exchange(m), trace_));
    const auto& outer = states[m].outer;
    if (!outer.agreed.empty()) replica.loop.restore(outer);
  }
  network_.begin(replicas_.front()->loop.fragments());
}

void mock_step(OuterLoop& loop, PlainParameters& local, const FragmentLayout& layout,
               const Replicas::Table& table, std::size_t m) {
  std::vector<float> change(local.values.size(), 0.0F);
  for (const auto& fragment : layout.fragments()) {
    for (auto i = fragment.begin; i < fragment.end(); ++i) change[i] = table(m, loop.step() + 1, i);
  }
  const bool synchronous = loop.synchronous();
  if (synchronous) loop.average_gradients(change, tokens_per_step);
  for (std::size_t i = 0; i < change.size(); ++i)
    local.values[i] += synchronous ? -Replicas::warmup_rate * change[i] : change[i];
  loop.after_step(tokens_per_step);
}

void Replicas::step(std::size_t m) {
  auto& replica = *replicas_[m];
  mock_step(replica.loop, replica.local, layout_, table_, m);
  const auto global = replica.loop.global_parameters();
  replica.globals.emplace_back(global.begin(), global.end());
  replica.locals.push_back(replica.local.values);
}

void Replicas::in_parallel(const std::function<void(std::size_t)>& work) {
  std::mutex mutex;
  std::exception_ptr first_failure;
  {
    std::vector<std::jthread> threads;
    for (std::size_t m = 0; m < size(); ++m) {
      threads.emplace_back([&, m] {
        try {
          work(m);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first_failure) first_failure = std::current_exception();
          network_.fail();
        }
      });
    }
  }
  if (first_failure) std::rethrow_exception(first_failure);
}

void Replicas::train(std::uint64_t last_step) {
  in_parallel([&](std::size_t m) {
    while (at(m).loop.step() < last_step) step(m);
  });
}

void Replicas::finish() {
  in_parallel([&](std::size_t m) { at(m).loop.finish(); });
}

std::vector<ReplicaState> Replicas::save() {
  std::vector<ReplicaState> states;
  for (auto& replica : replicas_) {
    auto outer = replica->loop.save();
    EXPECT_TRUE(outer) << "rounds do not commit";
    states.push_back({replica->local.values, std::move(*outer)});
  }
  return states;
}

Digest Replicas::global_hash() {
  const auto hash = at(0).loop.global_hash();
  for (std::size_t m = 1; m < size(); ++m)
    EXPECT_EQ(at(m).loop.global_hash().hex(), hash.hex())
        << "replica " << m << " has different global parameters";
  return hash;
}

void Replicas::expect_agreement() {
  static_cast<void>(global_hash());
  for (std::size_t m = 0; m < size(); ++m) {
    EXPECT_EQ(at(m).local.open, 0) << "a range was left open for modification";
    EXPECT_EQ(at(m).loop.fragments(), at(0).loop.fragments())
        << "replica " << m << " has different chain hashes";
    ASSERT_EQ(at(m).globals.size(), at(0).globals.size());
    for (std::size_t t = 0; t < at(0).globals.size(); ++t) {
      ASSERT_EQ(hash_of(std::as_bytes(std::span(at(m).globals[t]))).hex(),
                hash_of(std::as_bytes(std::span(at(0).globals[t]))).hex())
          << "global parameters of replica " << m << " differ after " << t + 1 << " steps";
    }
  }
}

}  // namespace isthmus::outer_sync
