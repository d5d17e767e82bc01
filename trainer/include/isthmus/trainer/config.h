#pragma once
// Keys `model.*`, `inner.*`, `trainer.*`, `replica.*` and `device`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::trainer {

/// One of two decoders; the vocabulary comes from the tokenizer.
/// - llama: RMSNorm before each half of a layer, rotary positions, SwiGLU, grouped-query attention.
/// - gpt2: LayerNorm with bias instead, learned positions, GELU (tanh form), biases everywhere.
struct ModelConfig {
  std::string preset = "none";
  std::string architecture = "llama";
  std::int64_t layers = 4;
  std::int64_t dim = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;
  std::int64_t ffn_dim = 0;
  bool tie_embeddings = false;
  bool qk_norm = true;
  double rope_theta = 10000;
  std::int64_t positions = 0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  /// Reading a preset replaces all of the above, and reading an architecture sets its usual options (gpt2: no
  /// QK-norm, a tied head); keys that are read later override both.
  void serialize(config::Archive& ar);

  /// Replaces zeros by their defaults (kv_heads = heads; ffn_dim = 8/3 dim rounded up to a multiple of 64,
  /// for gpt2 4 dim; positions = seq_len). Throws Error(config) naming both keys if two of them are
  /// incompatible.
  void resolve(std::int64_t seq_len);
  [[nodiscard]] bool is_gpt2() const { return architecture == "gpt2"; }
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
  double momentum = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  double z_loss = 0;
  std::int64_t batch = 32;
  std::string precision = "auto";
  void serialize(config::Archive& ar);
  [[nodiscard]] bool is_muon() const { return optimizer == "muon"; }
};

struct TrainerConfig {
  std::string init_from = {};
  std::int64_t threads = 0;
  std::int64_t micro_batch = 0;
  bool activation_checkpointing = false;
  bool deterministic = false;
  void serialize(config::Archive& ar);
};

/// One replica as several processes, on one machine or on several that a fast network connects.
struct ReplicaConfig {
  std::int64_t ranks = 1;
  std::int64_t ranks_per_sequence = 1;
  std::int64_t average_every = 1;
  std::string machines = {};
  std::string reach = "ssh {machine} isthmus";
  bool zero = false;
  void serialize(config::Archive& ar);

  /// Throws Error(config) naming both keys if a batch of this many sequences cannot be divided evenly among
  /// the ranks, or if the ranks would average parameters of which each updates only a share.
  void check(std::int64_t batch) const;
  /// The addresses in `machines`; empty if all ranks are on one machine.
  [[nodiscard]] std::vector<std::string> machine_list() const;
  [[nodiscard]] std::int64_t ranks_per_machine() const;
  /// `reach` for a machine of the list, in words, with the options that keep ssh from asking and waiting.
  [[nodiscard]] std::vector<std::string> command_on(const std::string& machine) const;
  /// Throws Error(config) naming `key`, the number of replicas, if several would start their ranks on the
  /// same machines.
  void check_own_machines(const std::string& key, std::int64_t replicas) const;
  /// The same for the tokens of a sequence and the heads of the model, which must be resolved.
  void check_sequences(std::int64_t seq_len, const ModelConfig& model) const;
};

/// Defaults of training that fit the model of `model.preset` instead of the small default model.
struct PresetTraining {
  double lr;
  std::int64_t warmup_steps, seq_len, batch, micro_batch;
};

/// For a run of this many steps; nullopt for the preset `none`. The warm-up takes 375 M tokens of two
/// replicas, as GPT-3's (arXiv 2005.14165, section B), but at most a twentieth of the steps.
[[nodiscard]] std::optional<PresetTraining> preset_training(const std::string& preset, std::int64_t steps);

/// The top-level key `device`, which is in no section.
struct DeviceConfig {
  std::string device = "auto";
  void serialize(config::Archive& ar);
};

}  // namespace isthmus::trainer
