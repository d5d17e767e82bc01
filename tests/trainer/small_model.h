#pragma once
// Models small enough to be trained in milliseconds, and batches for them.

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

inline ModelShape small_shape(bool tied = false) {
  ModelConfig config;
  config.layers = 2;
  config.dim = 16;
  config.heads = 4;
  config.kv_heads = 2;
  config.ffn_dim = 24;
  config.tie_embeddings = tied;
  config.init_std = 0.2;  // large enough that every part of the model changes the loss
  config.resolve(12);
  return {config, 31};
}

inline ModelShape small_gpt2_shape(bool tied = true) {
  auto shape = small_shape(tied);
  shape.config.architecture = "gpt2";
  shape.config.kv_heads = 0;
  shape.config.qk_norm = false;
  shape.config.resolve(12);
  return shape;
}

inline ParameterTable small_table(std::int64_t fragments = 3, bool tied = false) {
  return {small_shape(tied), fragments, 1024};
}

/// Owns the ids of a data::Batch.
class OwnedBatch {
 public:
  OwnedBatch(std::uint64_t seed, std::int64_t sequences, std::int64_t length, std::int64_t vocab = 31)
      : ids_(static_cast<std::size_t>(sequences * (length + 1))) {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const bool first = i % static_cast<std::size_t>(length + 1) == 0;
      // The ids of a row follow a rule that can be learned.
      const auto id = first ? random_bits(seed, 0, i) : std::uint64_t{ids_[i - 1]} * 7 + 3;
      ids_[i] = static_cast<std::uint16_t>(id % static_cast<std::uint64_t>(vocab));
    }
    rows_.resize(static_cast<std::size_t>(sequences));
    batch_.seq_len = length;
    batch_.together = true;
  }
  /// Valid as long as this is not moved.
  data::Batch get() {
    for (std::size_t i = 0; i < rows_.size(); ++i)
      rows_[i] = reinterpret_cast<const std::byte*>(ids_.data()) + i * batch_.row_bytes();
    batch_.rows = rows_;
    return batch_;
  }
  [[nodiscard]] std::uint16_t& id(std::size_t index) { return ids_[index]; }

 private:
  std::vector<std::uint16_t> ids_;
  std::vector<const std::byte*> rows_;
  data::Batch batch_;
};

inline ReplicaOptions small_options(Precision precision = Precision::fp32) {
  ReplicaOptions options;
  options.inner.lr = 1e-2;
  options.precision = precision;
  options.longest_sequence = 12;
  options.seed = 5;
  return options;
}

/// Trains for `steps` steps on batches that depend only on the step.
inline std::vector<float> train(Replica& replica, std::uint64_t steps) {
  std::vector<float> losses;
  for (std::uint64_t i = 0; i < steps; ++i) {
    OwnedBatch batch(replica.steps() + 100, 4, 12);
    losses.push_back(replica.forward_backward(batch.get()));
    replica.inner_step(1e-2);
  }
  return losses;
}

inline std::vector<float> values_of(std::span<const float> values) { return {values.begin(), values.end()}; }

/// Root of the sum of squared differences, divided by the root of the sum of squares of `b`.
inline double distance(std::span<const float> a, std::span<const float> b) {
  double square = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += std::pow(double{a[i]} - b[i], 2);
    scale += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(square / scale);
}

}  // namespace isthmus::trainer
