#pragma once
// Losses and next-token scores of parameters that are not being trained: the global ones. An Inference has a
// model and buffers of its own, so it never touches a replica's state, and no optimizer, so observers can use
// it.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/data/loader.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/parameter_table.h"

namespace isthmus::trainer {

/// Sums, so that replicas can share the work and add up their results: loss = nats / tokens.
struct LossSum {
  double nats = 0;
  std::uint64_t tokens = 0;
};

class Inference {
 public:
  /// Parameters are zero until the first load(). Sequences have at most `longest_sequence` tokens.
  /// `separator` as in ReplicaOptions.
  Inference(ParameterTable table, Device device, Precision precision, std::int64_t longest_sequence,
            std::int64_t separator = -1);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// Copies `parameters` (flat order, buffer_size() long).
  void load(std::span<const float> parameters);
  /// Sum of the cross-entropy over all tokens of a batch, which is on the inference's device.
  [[nodiscard]] LossSum loss(const data::Batch& batch);
  /// Logits of the id that follows `tokens` (1 to longest_sequence() of them, in host memory): one for each
  /// id of the vocabulary.
  [[nodiscard]] std::vector<float> next_logits(std::span<const std::int64_t> tokens);
  [[nodiscard]] std::int64_t longest_sequence() const;
  [[nodiscard]] std::int64_t vocab() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Loss over all batches. The losses of the shares of a set add up to the loss over the set.
[[nodiscard]] LossSum evaluate(Inference& inference, std::span<const data::Batch> batches);

}  // namespace isthmus::trainer
