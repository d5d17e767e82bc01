#pragma once
// One replica's training state: model, flat buffers, inner optimizer. Owned and used by the main thread.
//
//   Replica replica(table, options);
//   float loss = replica.forward_backward(loader.next());    // computes the gradients
//   all_reduce.mean(replica.gradients());                    // data parallel only
//   replica.inner_step(learning_rate(inner, step, steps));
//   outer.after_step();                                      // uses the replica as LocalParameters

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/engine/inner_moments.h"
#include "isthmus/outer_sync/engine/local_parameters.h"
#include "isthmus/trainer/config.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

class RankGroup;

struct ReplicaOptions {
  InnerConfig inner;
  Device device = Device::cpu;
  Precision precision = Precision::fp32;
  std::int64_t longest_sequence = 0;  ///< tokens; data.seq_len
  std::uint64_t seed = 0;             ///< seed of the initial parameters; equal on all replicas
  std::int64_t separator = -1;        ///< id that ends a document and so bounds attention; -1: attention is
                                      ///< not bounded
  TrainerConfig trainer = {};         ///< initial parameters, and how to save memory
  /// Whether to keep the gradient in fp32 on the device, where others' can be added to it (device_gradients).
  bool shared_gradient = false;
  /// Elements that inner_step updates, and of which this process holds the moments; nullopt: all of them.
  std::optional<outer_sync::Range> share = {};
};

/// Everything that a replica needs to continue as if it had never stopped. Vectors have buffer_size()
/// elements.
struct ReplicaState {
  std::uint64_t steps = 0;
  std::vector<float> parameters, first_moment, second_moment;
};

class Replica : public outer_sync::DeviceParameters, public outer_sync::InnerMoments {
 public:
  /// Starts at step 0 with initial_parameters(table, seed), or those in trainer.init_from, and zero moments.
  /// Allocates all buffers. Throws like read_pretrained.
  Replica(ParameterTable table, const ReplicaOptions& options);
  ~Replica() override;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Computes the loss of the batch (mean, nats per token, without z-loss) and its gradient, which replaces
  /// the last one. The batch must be on the replica's device. Throws Error(divergence) if the loss is not
  /// finite, naming a parameter that is not finite if there is one; Error(data) for an id outside the
  /// vocabulary.
  virtual float forward_backward(const data::Batch& batch);

  /// From now on each rank of the group computes an equal part of the tokens of every sequence, while all of
  /// them get the same batches. The group must outlive the last step. Null: this replica computes them whole.
  void share_sequences(RankGroup* group);

  /// The gradient as fp32 in host memory, in flat order, with zero padding. It may be changed in place until
  /// inner_step, which then uses it. (With fp32 on a CPU this is the gradient itself; else a copy.)
  [[nodiscard]] virtual std::span<float> gradients();
  /// The gradient on the device, including changes made through gradients(); only with `shared_gradient`.
  [[nodiscard]] std::span<float> device_gradients();

  /// Clips the gradient to inner.clip, makes one step of inner.optimizer with learning rate `lr`, and counts
  /// the step. Returns the gradient's norm before clipping. If that is not finite, throws Error(divergence)
  /// and changes nothing.
  virtual double inner_step(double lr);

  /// Steps made, including those before a restore; if moments were copied from elsewhere, the steps that
  /// belong to them.
  [[nodiscard]] std::uint64_t steps() const override;

  // LocalParameters; ranges are in [0, buffer_size()).
  [[nodiscard]] std::span<const float> read(outer_sync::Range range) override;
  [[nodiscard]] std::span<float> modify(outer_sync::Range range) override;
  void modified(outer_sync::Range range) override;
  // DeviceParameters; on a CPU the parameters themselves.
  [[nodiscard]] std::span<float> device_values(outer_sync::Range range) override;
  void modified_on_device(outer_sync::Range range) override;
  // InnerMoments; ranges are in the share.
  [[nodiscard]] std::span<const float> first_moment(outer_sync::Range range) override;
  [[nodiscard]] std::span<const float> second_moment(outer_sync::Range range) override;
  void set_moments(outer_sync::Range range, std::span<const float> first,
                   std::span<const float> second) override;
  void set_steps(std::uint64_t steps) override;
  /// First and second moments of the share, on the device.
  [[nodiscard]] std::array<std::span<float>, 2> device_moments();

  /// All parameters of this process, in host memory; valid until the next call of any function here.
  [[nodiscard]] std::span<const float> parameters() { return Replica::read({0, table().buffer_size()}); }
  /// With a share, the moments are those of the share only, while `restore` takes those of the whole buffer.
  [[nodiscard]] ReplicaState state();
  /// Copies the state to `state` and reuses its memory.
  virtual void copy_state(ReplicaState& state);
  virtual void restore(const ReplicaState& state);
  /// Resets the inner optimizer: zero moments, zero steps.
  virtual void forget_moments();

  /// Seconds spent so far in averages over the ranks of this replica, if they train on their own.
  [[nodiscard]] virtual double rank_average_seconds() const { return 0; }

  [[nodiscard]] const ParameterTable& table() const;
  [[nodiscard]] Device device() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::trainer
