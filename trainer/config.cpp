#include "isthmus/trainer/config.h"

#include <string_view>
#include <vector>

#include "isthmus/base/error.h"
#include "presets.h"

namespace isthmus::trainer {

using config::Scope;
using config::unbounded;

namespace {

[[noreturn]] void refuse(const std::string& first, std::int64_t a, const std::string& second, std::int64_t b,
                         const std::string& expected) {
  throw Error(ErrorKind::config, first + " is " + std::to_string(a) + " and " + second + " is " +
                                     std::to_string(b) + "; expected " + expected);
}

constexpr const char* no_preset = "none";

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names = {no_preset};
  for (const auto& preset : presets) names.push_back(preset.name);
  return names;
}

}  // namespace

void ModelConfig::serialize(config::Archive& ar) {
  const auto preset_before = preset;
  ar({"preset", &preset, Scope::agreed,
      "a model of known sizes, which fills in the other keys of this section; those that are set beside it "
      "go over it (docs/models.md)",
      -unbounded, unbounded, preset_names()});
  if (preset != preset_before && preset != no_preset) *this = model_of(preset);
  const auto architecture_before = architecture;
  ar({"architecture",
      &architecture,
      Scope::agreed,
      "llama: RMSNorm, rotary positions, SwiGLU; gpt2: LayerNorm, learned positions, GELU, biases",
      -unbounded,
      unbounded,
      {"llama", "gpt2"}});
  if (architecture != architecture_before) {
    qk_norm = !is_gpt2();
    tie_embeddings = is_gpt2();
  }
  ar({"layers", &layers, Scope::agreed, "transformer layers", 1, 4096});
  ar({"dim", &dim, Scope::agreed, "width of the residual stream", 2, 65536});
  ar({"heads", &heads, Scope::agreed, "attention heads of dim / heads elements each", 1, 1024});
  ar({"kv_heads", &kv_heads, Scope::agreed,
      "heads of keys and values, shared by groups of heads; 0 for as many as heads", 0, 1024});
  ar({"ffn_dim", &ffn_dim, Scope::agreed,
      "width of the feed-forward part; 0 for 8/3 dim rounded up to 64, of gpt2 for 4 dim", 0, 1 << 20});
  ar({"tie_embeddings", &tie_embeddings, Scope::agreed,
      "one matrix for the embedding and the head; gpt2 has it unless it is said otherwise"});
  ar({"qk_norm", &qk_norm, Scope::agreed,
      "llama: RMSNorm of each head's queries and keys before the rotation"});
  ar({"rope_theta", &rope_theta, Scope::agreed, "llama: base of the rotary positions' wavelengths", 1, 1e12});
  ar({"positions", &positions, Scope::agreed,
      "gpt2: learned positions, which bound data.seq_len; 0 for as many as that", 0, 1 << 20});
  ar({"norm_eps", &norm_eps, Scope::agreed, "added to the mean square in the norms", 1e-12, 1e-2});
  ar({"init_std", &init_std, Scope::agreed,
      "standard deviation of initial matrices; those that add to the residual stream get it over sqrt(2 "
      "layers)",
      0, 1});
}

void ModelConfig::resolve(std::int64_t seq_len) {
  if (kv_heads == 0) kv_heads = heads;
  if (ffn_dim == 0) ffn_dim = is_gpt2() ? 4 * dim : (8 * dim / 3 + 63) / 64 * 64;
  if (is_gpt2() && positions == 0) positions = seq_len;
  if (dim % heads != 0) refuse("model.dim", dim, "model.heads", heads, "a multiple of heads");
  if (is_gpt2()) {
    if (kv_heads != heads)
      refuse("model.heads", heads, "model.kv_heads", kv_heads, "as many: gpt2 shares no keys and values");
    if (qk_norm)
      throw Error(ErrorKind::config, "model.qk_norm is true; expected false with model.architecture gpt2");
    if (seq_len > positions)
      refuse("data.seq_len", seq_len, "model.positions", positions, "at most one token for each position");
    return;
  }
  if (head_dim() % 2 != 0)
    refuse("model.dim", dim, "model.heads", heads, "an even dim / heads: rotations act on pairs");
  if (heads % kv_heads != 0)
    refuse("model.heads", heads, "model.kv_heads", kv_heads, "a multiple of kv_heads");
}

void InnerConfig::serialize(config::Archive& ar) {
  ar({"optimizer",
      &optimizer,
      Scope::agreed,
      "inner optimizer; muon is for the matrices inside layers, beside adamw for the rest",
      -unbounded,
      unbounded,
      {"adamw", "muon"}});
  ar({"lr", &lr, Scope::agreed, "maximum learning rate", 0, 10});
  ar({"schedule",
      &schedule,
      Scope::agreed,
      "course of the learning rate after its warm-up",
      -unbounded,
      unbounded,
      {"cosine", "constant", "wsd"}});
  ar({"min_lr_ratio", &min_lr_ratio, Scope::agreed, "final learning rate of cosine and wsd, as a share of lr",
      0, 1});
  ar({"warmup_steps", &warmup_steps, Scope::agreed, "steps in which the learning rate rises linearly to lr",
      0, 1e12});
  ar({"decay_fraction", &decay_fraction, Scope::agreed, "part of all steps, at the end, in which wsd falls",
      0, 1});
  ar({"beta1", &beta1, Scope::agreed, "decay per step of the gradient's running mean", 0, 0.9999});
  ar({"beta2", &beta2, Scope::agreed, "decay per step of the squared gradient's running mean", 0, 0.99999});
  ar({"momentum", &momentum, Scope::agreed, "muon: decay per step of the gradient's running mean", 0,
      0.9999});
  ar({"eps", &eps, Scope::agreed, "added to the root of the squared gradient's running mean", 1e-15, 1});
  ar({"weight_decay", &weight_decay, Scope::agreed,
      "decoupled weight decay of matrices, times the learning rate", 0, 10});
  ar({"clip", &clip, Scope::agreed, "maximum global gradient norm; 0 disables clipping", 0, 1e12});
  ar({"z_loss", &z_loss, Scope::agreed,
      "weight of the squared logarithm of the softmax's denominator in what is minimised (the loss that is "
      "reported is without it); 0 none",
      0, 1});
  // A contribution weighs as many tokens as are behind it.
  ar({"batch", &batch, Scope::per_site, "sequences in one step of one replica", 1, 1 << 20});
  // Local arithmetic, not agreed state: replicas of different hardware may differ in it.
  ar({"precision",
      &precision,
      Scope::per_site,
      "format of weights and activations in the forward and backward pass (masters and moments are fp32); "
      "auto is bf16 "
      "on a GPU and on a CPU with bf16 instructions, else fp32",
      -unbounded,
      unbounded,
      {"auto", "fp32", "bf16"}});
}

void TrainerConfig::serialize(config::Archive& ar) {
  // What must agree is in it, not where it lies: members compare the hash of their global parameters.
  ar({"init_from", &init_from, Scope::per_site,
      "folder of a model in Hugging Face's layout (config.json, model.safetensors) whose parameters a new "
      "run "
      "begins with; empty: initial ones, by run.seed"});
  ar({"threads", &threads, Scope::per_site,
      "CPU threads of one replica's computation; 0 shares the cores evenly", 0, 4096});
  ar({"micro_batch", &micro_batch, Scope::per_site,
      "sequences that go through the model at once; a step's gradient is that of its whole batch all the "
      "same, summed in fp32; 0 for all of them",
      0, 1 << 20});
  ar({"activation_checkpointing", &activation_checkpointing, Scope::per_site,
      "keep what goes into each layer alone and compute the layer again in the backward pass: a third more "
      "work, and a small part of the memory"});
  ar({"deterministic", &deterministic, Scope::per_site,
      "on a GPU: slower kernels that repeat to the bit (a CPU always does)"});
}

void ReplicaConfig::serialize(config::Archive& ar) {
  ar({"ranks", &ranks, Scope::per_site,
      "processes that are one replica together: on a GPU each has one of its own, on a CPU they share the "
      "cores; inner.batch is shared out over them",
      1, 64});
  ar({"zero", &zero, Scope::per_site,
      "ZeRO-1: each rank holds the inner optimizer's moments of its share of the parameters alone, and "
      "updates that share; the same bits as without"});
}

void ReplicaConfig::check(std::int64_t batch) const {
  if (batch % ranks != 0)
    refuse("inner.batch", batch, "replica.ranks", ranks, "a multiple of ranks: each takes as many sequences");
}

void DeviceConfig::serialize(config::Archive& ar) {
  ar({"device",
      &device,
      Scope::per_site,
      "device to train on; auto: cuda if there is a GPU",
      -unbounded,
      unbounded,
      {"auto", "cpu", "cuda"}});
}

}  // namespace isthmus::trainer
