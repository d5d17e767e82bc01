#pragma once
// The inner steps of a worker: takes batches, trains the replica on them, and averages gradients where all
// replicas make the same step.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "isthmus/base/samples.h"
#include "isthmus/base/trace.h"
#include "isthmus/data/device_timeline.h"
#include "isthmus/data/loader.h"
#include "isthmus/data/sample_source.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/trainer/gloo.h"
#include "isthmus/trainer/loss_watch.h"
#include "isthmus/trainer/replica.h"
#include "participant/participant.h"
#include "worker/setup/model_setup.h"
#include "worker/training/checkpoints.h"
#include "worker/training/inner_rate.h"

namespace isthmus::app {

class Training {
 public:
  /// Must outlive this.
  struct Parts {
    const Experiment& experiment;
    ModelSetup& setup;
    trainer::Replica& replica;
    Participant& participant;
    outer_sync::MemberNode& node;
    Trace& trace;
    data::DeviceTimeline& timeline;
    std::function<void(const std::string&)> say;
  };
  explicit Training(Parts parts) : parts_(std::move(parts)), samples_(parts_.node) {}

  /// For a data-parallel run of several replicas. The first member serves the Gloo store and announces its
  /// address to the others.
  void join_gloo();
  /// Begins to load batches from where this replica is.
  void begin();
  /// Stops loading; batches that were loaded are void.
  void end();
  /// Makes an inner step. The learning rate follows the agreed step, which stands still while rounds do not
  /// commit.
  [[nodiscard]] InnerStep step();
  /// The step counts: the outer loop has taken it.
  void count_step();

  /// The state was copied from other members. Without their moments, the inner optimizer is reset and the
  /// learning rate rises from a small value.
  void took_state();
  /// Counts sequences as if this replica had trained from the start. For a stream, everything in its store
  /// counts as trained on.
  void count_from_start();

  [[nodiscard]] LoopState state() const { return {.sequences = sequences_, .ramp_steps = ramp_steps_}; }
  void restore(const LoopState& state);
  /// Samples that this replica was trained on and that are not in a ledger. In a data-parallel run all
  /// replicas are equally far.
  [[nodiscard]] SampleSet pending_samples() const;
  /// Waits for the io thread.
  [[nodiscard]] outer_sync::protocol::Ledger ledger() const;
  [[nodiscard]] double data_wait_seconds() const;
  [[nodiscard]] double all_reduce_seconds() const { return gloo_seconds_; }
  [[nodiscard]] std::uint64_t all_reduce_bytes() const { return gloo_ ? gloo_->sent_bytes() : 0; }

 private:
  /// Samples that the run gives this replica to train on.
  class LeasedSamples final : public data::SampleSource {
   public:
    explicit LeasedSamples(outer_sync::MemberNode& node) : node_(node) {}
    [[nodiscard]] SampleRange next(std::uint64_t most) override { return node_.next_samples(most); }

   private:
    outer_sync::MemberNode& node_;
  };

  [[nodiscard]] std::uint64_t batch() const {
    return static_cast<std::uint64_t>(parts_.experiment.inner.batch);
  }
  [[nodiscard]] SampleSet first_of_all_tracks() const;
  void average_gradients(std::uint64_t tokens, std::span<const SampleRange> samples);

  Parts parts_;
  LeasedSamples samples_;
  std::optional<data::OneTrack> own_;  ///< no other member could take over a stream
  std::optional<data::Loader> loader_;
  std::optional<trainer::GlooAllReduce> gloo_;
  std::uint64_t sequences_ = 0;  ///< trained on
  std::uint64_t newest_ = 0;     ///< sequences of the newest step
  std::uint64_t ramp_steps_ = join_ramp_steps;
  trainer::LossWatch loss_watch_;
  std::uint64_t loss_spikes_ = 0;
  double data_wait_seconds_ = 0;  ///< of loaders that have ended
  double gloo_seconds_ = 0;
};

}  // namespace isthmus::app
