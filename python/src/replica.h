#pragma once
// One replica of a run, driven by another program's training loop: a Participant that is called step by step.
// No Python here.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/samples.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/engine/inner_moments.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "participant/participant.h"
#include "participant/training_records.h"
#include "run/experiment/experiment.h"
#include "run/process/run_folder.h"

namespace isthmus::python {

/// The local parameters: fp32 in host memory, in fragment order. If the model keeps them elsewhere or in
/// another format, `fetch` copies a range here and `store` copies it back; otherwise both are null.
class Memory final : public outer_sync::LocalParameters {
 public:
  using Move = std::function<void(outer_sync::Range)>;
  Memory(std::span<float> values, Move fetch, Move store)
      : values_(values), fetch_(std::move(fetch)), store_(std::move(store)) {}

  std::span<const float> read(outer_sync::Range range) override { return modify(range); }
  std::span<float> modify(outer_sync::Range range) override {
    if (fetch_) fetch_(range);
    return values_.subspan(range.begin, range.size);
  }
  void modified(outer_sync::Range range) override {
    if (store_) store_(range);
  }

 private:
  std::span<float> values_;
  Move fetch_, store_;
};

struct ReplicaRequest {
  app::Experiment experiment;
  std::string name;
  std::string build;  ///< of the training program, for messages about different builds
  bool quiet = false;
  std::vector<outer_sync::log::LoggedTensor> tensors;  ///< in buffer order
  std::vector<outer_sync::Range> fragments;
  outer_sync::FragmentId averaged = 0;                ///< the last fragments, which hold buffers
  Memory memory;                                      ///< as long as the layout's buffer; padding is zero
  std::unique_ptr<outer_sync::InnerMoments> moments;  ///< null: not shared with replicas that join
  std::function<void()> while_waiting;
  std::optional<Bytes> resume;  ///< result of `save`
  std::string precision, device;
};

/// The part of a state dict that belongs to the replica.
struct SavedReplica {
  static constexpr std::uint64_t known = 0x32305950'48545349;  // "ISTHPY02", little-endian
  std::uint64_t magic = known;
  Digest model;
  std::uint64_t step = 0, tokens = 0;
  Bytes agreed, own;  ///< of the outer loop
  outer_sync::protocol::Ledger ledger;
  outer_sync::protocol::Settings settings;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(magic, model, step, tokens, agreed, own, ledger, settings);
  }
};

/// Used by one thread, which makes all waits.
class Replica final : private app::TrainingHooks {
 public:
  /// Joins the run and returns when the first step may begin: with the others, or after copying their state.
  /// Throws Error as `isthmus worker` does, and what `while_waiting` throws.
  explicit Replica(ReplicaRequest request);
  ~Replica() override;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Call it after an inner step of `tokens` tokens, and of the oldest `samples` that `next_samples` returned
  /// (nullopt: all). Returns false after the last step: the run is over or was stopped, or this replica is
  /// asked to leave.
  bool after_step(std::optional<double> loss, std::uint64_t tokens, std::optional<std::uint64_t> samples);
  /// Whether `after_step` would send or apply anything; then the caller checks the parameters first.
  [[nodiscard]] bool is_due() const { return participant_.is_due(); }
  [[nodiscard]] bool synchronous() const { return participant_.outer().synchronous(); }
  void average_gradients(std::span<float> gradients, std::uint64_t tokens,
                         std::optional<std::uint64_t> samples);
  /// Indices of the next `count` samples in a data set of `size` samples, by the run's ledger. Steps are made
  /// on them in this order.
  [[nodiscard]] std::vector<std::uint64_t> next_samples(std::uint64_t count, std::uint64_t size);

  [[nodiscard]] std::span<const float> global_parameters() {
    return participant_.outer().global_parameters();
  }
  [[nodiscard]] std::string global_hash();
  [[nodiscard]] std::uint64_t step() const { return participant_.outer().step(); }
  [[nodiscard]] std::uint64_t buffer_size() const { return layout_.buffer_size(); }
  [[nodiscard]] bool running() const { return participant_.state() < State::finishing; }
  [[nodiscard]] bool stopped() const { return participant_.stopped(); }
  /// Why this replica was asked to leave; empty if it was not.
  [[nodiscard]] std::string leaves() const { return participant_.leaves(); }
  [[nodiscard]] bool frozen() const { return participant_.outer().frozen(); }
  /// How often the state was copied from others.
  [[nodiscard]] std::uint64_t states_taken() const { return participant_.states_taken(); }
  [[nodiscard]] outer_sync::Rank rank() const { return node_.status().rank(); }
  [[nodiscard]] const outer_sync::OuterLoop::Stats& stats() const { return participant_.outer().stats(); }
  [[nodiscard]] const outer_sync::Gossip::Stats& gossip() const { return participant_.outer().gossip(); }
  [[nodiscard]] outer_sync::NodeStatus status() const { return participant_.status(); }
  /// Whether the run wants an evaluation, or a checkpoint, of this step.
  [[nodiscard]] bool wants_evaluation() const;
  [[nodiscard]] bool wants_checkpoint() const;

  /// Throws Error(network) while rounds do not commit.
  [[nodiscard]] Bytes save();
  void report_evaluation(double sum_nats, std::uint64_t tokens);
  void request_stop(const std::string& reason) { node_.request_stop(reason); }
  /// Asks this replica alone to leave, after which `after_step` returns false. Any thread.
  void request_leave(const std::string& reason) { participant_.request_leave(reason); }
  /// If the run is over, sends the final report and waits for the others; otherwise leaves the run. Further
  /// calls do nothing.
  void close(const std::string& why);

 private:
  using Clock = std::chrono::steady_clock;
  using State = app::Participant::State;

  void say(const std::string& text) override;
  [[nodiscard]] Restored restore(std::uint64_t step) override;
  void joined() override;
  void before_the_end() override { write_ledger(); }
  [[nodiscard]] std::string summary(const app::MemberReport& known) override;

  [[nodiscard]] outer_sync::protocol::Hello hello(const std::optional<Bytes>& resume);
  bool await_turn();
  /// The first `count` samples of `given_` (nullopt: all).
  [[nodiscard]] std::vector<SampleRange> oldest(std::optional<std::uint64_t> count) const;
  void write_ledger();
  void check_training(const char* what) const;

  app::Experiment config_;
  const std::string name_, build_, precision_, device_;
  const bool quiet_;
  const int process_;
  std::vector<outer_sync::log::LoggedTensor> tensors_;
  outer_sync::FragmentLayout layout_;
  Digest model_;
  std::filesystem::path folder_;
  app::FolderLock lock_;
  const std::shared_ptr<outer_sync::RecordQueue> gathered_ = std::make_shared<outer_sync::RecordQueue>();
  Trace trace_;
  app::TrainingRecords records_;
  Memory memory_;
  std::unique_ptr<outer_sync::InnerMoments> moments_;
  std::unique_ptr<app::NodeMembership> member_;  ///< moved into the participant
  outer_sync::MemberNode& node_;
  app::Participant participant_;

  std::optional<SavedReplica> saved_;  ///< that it is resumed from, until it has joined
  std::uint64_t tokens_before_ = 0;    ///< trained on before it was resumed
  bool averaged_ = false;
  std::deque<SampleRange> given_;  ///< no step has been made on them yet
  bool uses_ledger_ = false;       ///< `next_samples` was called
  Clock::time_point began_;        ///< start of the inner step
};

}  // namespace isthmus::python
