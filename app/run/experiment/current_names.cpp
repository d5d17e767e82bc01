#include "run/experiment/current_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "isthmus/base/error.h"
#include "isthmus/base/near_word.h"
#include "isthmus/base/text.h"
#include "isthmus/quant/codec.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

namespace {

using Entry = config::Source::Entry;

/// docs/reference/names-elsewhere.md lists them. An alias has its key's unit and direction.
constexpr auto aliases = std::to_array<KeyAlias>({
    {"outer.sync_period", "outer.sync_every"},             // MaxText
    {"outer.sync_steps", "outer.sync_every"},              // torchtitan
    {"outer.fragment_sync_delay", "outer.sync_delay"},     // torchft
    {"outer.fragment_update_alpha", "outer.merge_alpha"},  // torchft
    {"run.max_steps", "run.steps"},                        // Hugging Face, like the rest
    {"run.eval_steps", "run.eval_every"},
    {"run.save_steps", "run.checkpoint_every"},
    {"run.save_total_limit", "run.keep_checkpoints"},
    {"inner.learning_rate", "inner.lr"},
    {"inner.max_grad_norm", "inner.clip"},
    {"trainer.per_device_train_batch_size", "trainer.micro_batch"},
    {"trainer.gradient_checkpointing", "trainer.activation_checkpointing"},
    {"model.num_hidden_layers", "model.layers"},
    {"model.hidden_size", "model.dim"},
    {"model.num_attention_heads", "model.heads"},
    {"model.num_key_value_heads", "model.kv_heads"},
    {"model.intermediate_size", "model.ffn_dim"},
});

/// Length of "sites.NAME." in the key of a site; 0 for other keys.
std::size_t site_prefix(std::string_view key) {
  constexpr std::string_view sites = "sites.";
  if (!key.starts_with(sites)) return 0;
  const auto dot = key.find('.', sites.size());
  return dot == std::string_view::npos ? 0 : dot + 1;
}

/// A --set overrides a file, under either name. Otherwise one of the two names is a mistake.
bool overrides(const Entry& entry, const Entry& other) {
  if (entry.assigned() != other.assigned()) return entry.assigned();
  config_error(fmt::format("{} ({}) and {} ({}) are two names of one key; keep one of them",
                           printable(entry.key, 80), entry.place, printable(other.key, 80), other.place));
}

void refuse_near_alias(const Entry& entry, const std::vector<std::string>& keys) {
  const auto key = entry.key.substr(site_prefix(entry.key));
  if (std::ranges::find(keys, key) != keys.end()) return;
  std::vector<std::string> names;
  for (const auto& alias : aliases) names.emplace_back(alias.alias);
  const auto near = near_word(key, names);
  if (near.empty() || edit_distance(key, config::nearest(key, keys)) <= edit_distance(key, near)) return;
  config_error(fmt::format("unknown key {} ({}); did you mean {}, which is {} here?",
                           printable(entry.key, 80), entry.place, near, current_key(near)));
}

void use_current_codec(Entry& entry) {
  if (entry.key != "outer.codec" && entry.key != "outer.warmup_codec") return;
  for (auto& value : entry.values) {
    const auto* stored = std::ranges::find(quant::codecs, value, &quant::Codec::stored_name);
    if (stored != quant::codecs.end()) value = std::string(stored->name);
  }
}

}  // namespace

std::span<const KeyAlias> key_aliases() { return aliases; }

std::string current_key(std::string_view name) {
  const auto prefix = site_prefix(name);
  const auto* found = std::ranges::find(aliases, name.substr(prefix), &KeyAlias::alias);
  return std::string(name.substr(0, prefix)) +
         std::string(found == aliases.end() ? name.substr(prefix) : found->key);
}

config::Source with_current_names(const config::Source& source) {
  Experiment sample;
  std::vector<std::string> keys;
  for (auto& item : config::list(sample)) keys.push_back(std::move(item.key));
  config::Source out;
  std::map<std::string, const Entry*> written;  // by current key
  for (const auto& entry : source.entries()) {
    const auto key = current_key(entry.key);
    if (key == entry.key) refuse_near_alias(entry, keys);
    const auto [before, is_new] = written.emplace(key, &entry);
    if (!is_new && !overrides(entry, *before->second)) continue;
    before->second = &entry;
    auto current = entry;
    current.key = key;
    use_current_codec(current);
    out.put(std::move(current));
  }
  return out;
}

}  // namespace isthmus::app
