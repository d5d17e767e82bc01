#pragma once
// Keys `model.*`, `inner.*`, `trainer.*` and `device`.

#include <cstdint>
#include <string>

#include "isthmus/base/config.h"

namespace isthmus::trainer {

/// A Llama-style decoder: RMSNorm before each half of a layer, rotary positions, SwiGLU, grouped-query
/// attention. The vocabulary comes from the tokenizer, the longest sequence from `data.seq_len`.
struct ModelConfig {
  std::int64_t layers = 4;
  std::int64_t dim = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;
  std::int64_t ffn_dim = 0;
  bool tie_embeddings = false;
  bool qk_norm = true;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  void serialize(config::Archive& ar);

  /// Replaces the zeros that stand for a default (kv_heads = heads; ffn_dim = 8/3 dim rounded up to a
  /// multiple of 64). Throws Error(config) naming both keys where two do not fit together.
  void resolve();
  [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

struct InnerConfig {
  std::string optimizer = "adamw";
  double lr = 3e-3;
  std::string schedule = "cosine";
  double min_lr_ratio = 0.1;
  std::int64_t warmup_steps = 100;
  double decay_fraction = 0.2;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::int64_t batch = 32;
  std::string precision = "auto";
  void serialize(config::Archive& ar);
};

struct TrainerConfig {
  std::int64_t threads = 0;
  bool deterministic = false;
  void serialize(config::Archive& ar);
};

/// The top-level key `device`: visited without a section.
struct DeviceConfig {
  std::string device = "auto";
  void serialize(config::Archive& ar);
};

}  // namespace isthmus::trainer
