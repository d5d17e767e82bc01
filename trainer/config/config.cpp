#include "isthmus/trainer/config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <vector>

#include "config/presets.h"
#include "isthmus/base/error.h"

namespace isthmus::trainer {

using config::Scope;
using config::unbounded;

namespace {

[[noreturn]] void refuse(const std::string& first, std::int64_t a, const std::string& second, std::int64_t b,
                         const std::string& expected) {
  config_error(first + " is " + std::to_string(a) + " and " + second + " is " + std::to_string(b) +
               "; expected " + expected);
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
      "predefined model; sets the other keys of this section, inner.lr, inner.warmup_steps, inner.batch, "
      "data.seq_len and trainer.micro_batch; keys that you set yourself override it (docs/models.md)",
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
      "heads of keys and values, each shared by a group of heads; 0: as many as heads", 0, 1024});
  ar({"ffn_dim", &ffn_dim, Scope::agreed,
      "width of the feed-forward part; 0: 8/3 dim rounded up to a multiple of 64, for gpt2 4 dim", 0,
      1 << 20});
  ar({"tie_embeddings", &tie_embeddings, Scope::agreed,
      "use one matrix for the embedding and the head; the default is true for gpt2"});
  ar({"qk_norm", &qk_norm, Scope::agreed,
      "llama: RMSNorm of each head's queries and keys before the rotation"});
  ar({"rope_theta", &rope_theta, Scope::agreed, "llama: base of the rotary positions' wavelengths", 1, 1e12});
  ar({"positions", &positions, Scope::agreed,
      "gpt2: number of learned positions, the maximum of data.seq_len; 0: data.seq_len", 0, 1 << 20});
  ar({"norm_eps", &norm_eps, Scope::agreed,
      "number added to the mean square in the norms, so that none is divided by zero", 1e-12, 1e-2});
  ar({"init_std", &init_std, Scope::agreed,
      "standard deviation of initial matrices; divided by sqrt(2 layers) in matrices that add to the "
      "residual stream",
      0, 1});
}

std::optional<PresetTraining> preset_training(const std::string& preset, std::int64_t steps) {
  const auto found = std::ranges::find(presets, preset, &Preset::name);
  if (found == presets.end()) return std::nullopt;
  constexpr std::int64_t warmup_tokens = 375'000'000;
  const auto warmup = std::min(warmup_tokens / (2 * found->batch * found->seq_len), steps / 20);
  return PresetTraining{found->lr, warmup, found->seq_len, found->batch, found->micro_batch};
}

void ModelConfig::resolve(std::int64_t seq_len) {
  if (kv_heads == 0) kv_heads = heads;
  if (ffn_dim == 0) ffn_dim = is_gpt2() ? 4 * dim : (8 * dim / 3 + 63) / 64 * 64;
  if (is_gpt2() && positions == 0) positions = seq_len;
  if (dim % heads != 0) refuse("model.dim", dim, "model.heads", heads, "a multiple of heads");
  if (is_gpt2()) {
    if (kv_heads != heads)
      refuse("model.heads", heads, "model.kv_heads", kv_heads,
             "equal numbers: gpt2 does not share keys and values");
    if (qk_norm) config_error("model.qk_norm is true; expected false with model.architecture gpt2");
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
      "inner optimizer; muon is for the matrices inside layers, with adamw for all other parameters",
      -unbounded,
      unbounded,
      {"adamw", "muon"}});
  ar({"lr", &lr, Scope::agreed, "maximum learning rate, reached at the end of the warm-up", 0, 10});
  ar({"schedule",
      &schedule,
      Scope::agreed,
      "schedule of the learning rate after its warm-up",
      -unbounded,
      unbounded,
      {"cosine", "constant", "wsd"}});
  ar({"min_lr_ratio", &min_lr_ratio, Scope::agreed,
      "final learning rate of cosine and wsd, as a fraction of lr", 0, 1});
  ar({"warmup_steps", &warmup_steps, Scope::agreed, "steps in which the learning rate rises linearly to lr",
      0, 1e12});
  ar({"decay_fraction", &decay_fraction, Scope::agreed,
      "fraction of all steps, at the end, in which wsd lowers the learning rate", 0, 1});
  ar({"beta1", &beta1, Scope::agreed, "decay per step of the gradient's running mean", 0, 0.9999});
  ar({"beta2", &beta2, Scope::agreed, "decay per step of the squared gradient's running mean", 0, 0.99999});
  ar({"momentum", &momentum, Scope::agreed, "muon: decay per step of the gradient's running mean", 0,
      0.9999});
  ar({"eps", &eps, Scope::agreed,
      "number added to the root of the squared gradient's running mean, by which steps are divided", 1e-15,
      1});
  ar({"weight_decay", &weight_decay, Scope::agreed,
      "share of each matrix that a step subtracts, times the learning rate (decoupled weight decay)", 0, 10});
  ar({"clip", &clip, Scope::agreed, "maximum global gradient norm; 0 disables clipping", 0, 1e12});
  ar({"z_loss", &z_loss, Scope::agreed,
      "weight of the squared logarithm of the softmax's denominator in the minimised loss (the reported loss "
      "excludes it); 0: none",
      0, 1});
  // Contributions are weighted by their number of tokens, so batches may differ.
  ar({"batch", &batch, Scope::per_site, "sequences per step of one replica", 1, 1 << 20});
  // Local arithmetic, not agreed state: replicas on different hardware may differ in it.
  ar({"precision",
      &precision,
      Scope::per_site,
      "format of weights and activations in the forward and backward pass (master weights and moments are "
      "fp32); auto: bf16 on a GPU and on a CPU with bf16 instructions, else fp32",
      -unbounded,
      unbounded,
      {"auto", "fp32", "bf16"}});
}

void TrainerConfig::serialize(config::Archive& ar) {
  // The content must agree, not the path: members compare the hash of their global parameters.
  ar({"init_from", &init_from, Scope::per_site,
      "folder of a model in Hugging Face's layout (config.json, model.safetensors) that provides the initial "
      "parameters of a new run; empty: random parameters from run.seed"});
  ar({"threads", &threads, Scope::per_site,
      "CPU threads for one replica's computation; 0: divide the cores evenly among the replicas of a machine",
      0, 4096});
  ar({"micro_batch", &micro_batch, Scope::per_site,
      "sequences that go through the model at once; a step's gradient is still that of its whole batch, "
      "summed in fp32; 0: all sequences",
      0, 1 << 20});
  ar({"activation_checkpointing", &activation_checkpointing, Scope::per_site,
      "keep only the input of each layer and recompute the layer in the backward pass: a third more work for "
      "a small part of the memory"});
  ar({"deterministic", &deterministic, Scope::per_site,
      "whether to use slower GPU kernels with results that are bit-identical in every run (on a CPU all "
      "are)"});
}

void ReplicaConfig::serialize(config::Archive& ar) {
  ar({"ranks", &ranks, Scope::per_site,
      "processes that form one replica: each has a GPU of its own, or on a CPU they share the cores; "
      "inner.batch is divided among them",
      1, 64});
  ar({"ranks_per_sequence", &ranks_per_sequence, Scope::per_site,
      "ranks that share each sequence, if the activations of one do not fit in the memory of one rank: each "
      "computes an equal part of the tokens, and attention exchanges tokens for heads",
      1, 64});
  ar({"average_every", &average_every, Scope::per_site,
      "inner steps between two averages over the ranks: 1: ranks average their gradients in every step; "
      "above: each trains on its share of inner.batch, and their parameters are averaged, in fp32",
      1, 100'000});
  ar({"machines", &machines, Scope::per_site,
      "addresses of the machines that hold equal numbers of the ranks, separated by commas, on the network "
      "that connects them; the first is the worker's own; empty: all ranks are on the worker's machine"});
  ar({"reach", &reach, Scope::per_site,
      "command with which the worker runs isthmus on another of replica.machines, in words separated by "
      "spaces; {machine} stands for its address, and options that keep ssh from waiting are added"});
  ar({"zero", &zero, Scope::per_site,
      "ZeRO-1: each rank holds the inner optimizer's moments only for its share of the parameters, and "
      "updates that share; results are bit-identical"});
}

namespace {
constexpr auto machine_word = "{machine}";
}

std::vector<std::string> ReplicaConfig::machine_list() const {
  std::vector<std::string> list;
  if (machines.empty()) return list;
  std::istringstream in(machines + ",");
  for (std::string machine; std::getline(in, machine, ',');) {
    const auto first = machine.find_first_not_of(' ');
    if (first == std::string::npos)
      config_error("replica.machines is '" + machines +
                   "'; expected an address "
                   "between any two commas");
    list.push_back(machine.substr(first, machine.find_last_not_of(' ') + 1 - first));
  }
  return list;
}

std::vector<std::string> ReplicaConfig::command_on(const std::string& machine) const {
  // Options of the user before them override these.
  constexpr std::array ssh_options = {"-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=10"};
  constexpr std::string_view stand_in = machine_word;
  std::vector<std::string> words;
  std::istringstream in(reach);
  for (std::string word; in >> word;) {
    if (word.find(stand_in) != std::string::npos && !words.empty() && words.front() == "ssh")
      words.insert(words.end(), ssh_options.begin(), ssh_options.end());
    for (auto at = word.find(stand_in); at != std::string::npos; at = word.find(stand_in))
      word.replace(at, stand_in.size(), machine);
    words.push_back(std::move(word));
  }
  return words;
}

std::int64_t ReplicaConfig::ranks_per_machine() const {
  return ranks / std::max<std::int64_t>(1, static_cast<std::int64_t>(machine_list().size()));
}

namespace {

constexpr auto together_key = "replica.ranks_per_sequence";

void check_machines(const ReplicaConfig& replica) {
  const auto list = replica.machine_list();
  if (list.empty()) return;
  for (const auto& machine : list) {
    in6_addr address;
    if (inet_pton(AF_INET, machine.c_str(), &address) != 1 &&
        inet_pton(AF_INET6, machine.c_str(), &address) != 1)
      config_error(
          "replica.machines has '" + machine +
          "'; expected IPv4 or IPv6 addresses, separated by commas (`getent hosts NAME` prints that of a "
          "name)");
    if (std::ranges::count(list, machine) > 1)
      config_error("replica.machines has " + machine + " twice; expected each machine once");
  }
  const auto count = static_cast<std::int64_t>(list.size());
  if (replica.ranks % count != 0)
    config_error("replica.ranks is " + std::to_string(replica.ranks) + " and replica.machines has " +
                 std::to_string(count) +
                 " addresses; expected a multiple of their number: machines have equal "
                 "numbers of ranks");
  if (count > 1 && replica.reach.find(machine_word) == std::string::npos)
    config_error("replica.reach is '" + replica.reach + "'; expected a command with " + machine_word +
                 ", for example ssh {machine} isthmus");
}

}  // namespace

void ReplicaConfig::check(std::int64_t batch) const {
  const auto together = ranks_per_sequence;
  if (ranks % together != 0)
    refuse("replica.ranks", ranks, together_key, together,
           "a multiple of it, the number of ranks that share each sequence");
  if (batch % (ranks / together) != 0)
    refuse("inner.batch", batch, "replica.ranks", ranks,
           together == 1 ? "a multiple of ranks, which take equal numbers of sequences"
                         : "a multiple of replica.ranks / replica.ranks_per_sequence");
  check_machines(*this);
  if (average_every == 1) return;
  if (zero)
    config_error("replica.average_every is " + std::to_string(average_every) +
                 " and replica.zero is true; expected average_every 1 or zero false: with ZeRO-1 each rank "
                 "updates only its share of the parameters");
  if (ranks > 1 && together == ranks)
    refuse("replica.average_every", average_every, together_key, together,
           "average_every 1: if all ranks share each sequence, they have the same gradient");
}

void ReplicaConfig::check_own_machines(const std::string& key, std::int64_t replicas) const {
  if (replicas == 1 || machine_list().size() < 2) return;
  config_error(
      key + " is " + std::to_string(replicas) + " and replica.machines is " + machines +
      "; expected one replica, since all would start their ranks on these machines: make a site with "
      "its own machines for each");
}

void ReplicaConfig::check_sequences(std::int64_t seq_len, const ModelConfig& model) const {
  const auto check = [this](const char* key, std::int64_t value, const char* what) {
    if (value % ranks_per_sequence != 0)
      refuse(key, value, together_key, ranks_per_sequence,
             std::string("a multiple of it: ranks take equal numbers of ") + what);
  };
  check("data.seq_len", seq_len, "tokens");
  check("model.heads", model.heads, "heads");
  check("model.kv_heads", model.kv_heads, "heads");
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
