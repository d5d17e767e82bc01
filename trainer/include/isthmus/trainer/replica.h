#pragma once
// One replica's training state: model, flat buffers, inner optimizer. Owned and used by the main thread.
//
//   Replica replica(table, options);
//   float loss = replica.forward_backward(loader.next());    // gradients are there
//   all_reduce.mean(replica.gradients());                    // data parallel only
//   replica.inner_step(learning_rate(inner, step, steps));
//   outer.after_step();                                      // reads and changes parameters through
//   LocalParameters

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/engine/device_outer_state.h"
#include "isthmus/outer_sync/engine/inner_moments.h"
#include "isthmus/trainer/config.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

struct ReplicaOptions {
  InnerConfig inner;
  Device device = Device::cpu;
  Precision precision = Precision::fp32;
  std::int64_t longest_sequence = 0;  ///< tokens; data.seq_len
  std::uint64_t seed = 0;             ///< of the initial parameters; equal on all replicas
  std::int64_t separator = -1;        ///< id that ends a document, which bounds attention; -1: nothing does
  TrainerConfig trainer = {};         ///< what it is to begin with, and how it saves memory
  /// The gradient is kept in fp32 on the device, where others' may be added to it (device_gradients).
  bool shared_gradient = false;
  /// Elements whose moments are held here, and which inner_step updates; nothing: all of them.
  std::optional<outer_sync::Range> share = {};
};

/// What a replica needs to go on as if it had never stopped. Vectors are buffer_size() long.
struct ReplicaState {
  std::uint64_t steps = 0;
  std::vector<float> parameters, first_moment, second_moment;
};

class Replica : public outer_sync::DeviceParameters, public outer_sync::InnerMoments {
 public:
  /// Starts at step 0 with initial_parameters(table, seed), or those in trainer.init_from, and zero moments.
  /// Buffers are allocated here, once. Throws as read_pretrained does.
  Replica(ParameterTable table, const ReplicaOptions& options);
  ~Replica() override;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Loss of the batch (mean, nats per token, without z-loss) and its gradient, which replaces the last one.
  /// The batch lies on the replica's device. Throws Error(divergence) for a loss that is not finite, naming a
  /// parameter that is not, Error(data) for an id outside the vocabulary.
  virtual float forward_backward(const data::Batch& batch);

  /// The gradient as fp32 in host memory, flat order, padding zero; it may be changed in place until
  /// inner_step, which then uses it. (fp32 on a CPU: the storage itself; else a copy.)
  [[nodiscard]] virtual std::span<float> gradients();
  /// The same on the device, with what gradients() gave out taken over; only with `shared_gradient`.
  [[nodiscard]] std::span<float> device_gradients();

  /// Clips the gradient to inner.clip and makes one step of inner.optimizer with learning rate `lr`; the step
  /// count grows by one. Returns the gradient's norm before clipping. Throws Error(divergence), with nothing
  /// changed, if it is not finite.
  virtual double inner_step(double lr);

  /// Steps made, those before a restore included; of moments that were taken over, their steps.
  [[nodiscard]] std::uint64_t steps() const override;

  // LocalParameters; ranges lie in [0, buffer_size()).
  [[nodiscard]] std::span<const float> read(outer_sync::Range range) override;
  [[nodiscard]] std::span<float> modify(outer_sync::Range range) override;
  void modified(outer_sync::Range range) override;
  // DeviceParameters; on a CPU the storage itself.
  [[nodiscard]] std::span<float> device_values() override;
  void modified_on_device(outer_sync::Range range) override;
  // InnerMoments; ranges lie in the share.
  [[nodiscard]] std::span<const float> first_moment(outer_sync::Range range) override;
  [[nodiscard]] std::span<const float> second_moment(outer_sync::Range range) override;
  void set_moments(outer_sync::Range range, std::span<const float> first,
                   std::span<const float> second) override;
  void set_steps(std::uint64_t steps) override;

  /// All parameters, in host memory; valid until the next call of anything here.
  [[nodiscard]] std::span<const float> parameters() { return read({0, table().buffer_size()}); }
  /// Of a share: its moments are as long as it, and `restore` takes those of the whole buffer.
  [[nodiscard]] ReplicaState state() const;
  /// The same, written over `state`: its memory is used again.
  virtual void copy_state(ReplicaState& state) const;
  virtual void restore(const ReplicaState& state);
  /// The inner optimizer begins anew: zero moments, zero steps.
  virtual void forget_moments();

  [[nodiscard]] const ParameterTable& table() const;
  [[nodiscard]] Device device() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::trainer
