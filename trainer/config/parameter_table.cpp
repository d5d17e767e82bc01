#include "isthmus/trainer/parameter_table.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"

namespace isthmus::trainer {

using outer_sync::FragmentLayout;
using outer_sync::Range;

namespace {

std::uint64_t elements(const std::vector<std::int64_t>& shape) {
  std::uint64_t n = 1;
  for (const auto extent : shape) n *= static_cast<std::uint64_t>(extent);
  return n;
}

/// The tensors of a fragment or of the whole model, before they get ranges; matrices and vectors separately.
struct Group {
  std::vector<TensorEntry> matrices, vectors;
};

TensorEntry matrix(std::string name, std::int64_t rows, std::int64_t columns, Init init = Init::normal) {
  return {.name = std::move(name), .shape = {rows, columns}, .range = {}, .init = init};
}
TensorEntry vector(std::string name, std::int64_t size, Init init = Init::one) {
  return {.name = std::move(name), .shape = {size}, .range = {}, .init = init};
}

void add_llama_layer(Group& group, const ModelConfig& c, std::int64_t layer) {
  const auto prefix = "model.layers." + std::to_string(layer) + ".";
  const auto kv_dim = c.kv_heads * c.head_dim();
  auto& m = group.matrices;
  m.push_back(matrix(prefix + "self_attn.q_proj.weight", c.dim, c.dim));
  m.push_back(matrix(prefix + "self_attn.k_proj.weight", kv_dim, c.dim));
  m.push_back(matrix(prefix + "self_attn.v_proj.weight", kv_dim, c.dim));
  m.push_back(matrix(prefix + "self_attn.o_proj.weight", c.dim, c.dim, Init::residual));
  m.push_back(matrix(prefix + "mlp.gate_proj.weight", c.ffn_dim, c.dim));
  m.push_back(matrix(prefix + "mlp.up_proj.weight", c.ffn_dim, c.dim));
  m.push_back(matrix(prefix + "mlp.down_proj.weight", c.dim, c.ffn_dim, Init::residual));
  auto& v = group.vectors;
  v.push_back(vector(prefix + "input_layernorm.weight", c.dim));
  v.push_back(vector(prefix + "post_attention_layernorm.weight", c.dim));
  if (c.qk_norm) {
    v.push_back(vector(prefix + "self_attn.q_norm.weight", c.head_dim()));
    v.push_back(vector(prefix + "self_attn.k_norm.weight", c.head_dim()));
  }
}

void add_llama_ends(Group& group, const ModelShape& model) {
  const auto& c = model.config;
  group.matrices.push_back(matrix("model.embed_tokens.weight", model.vocab, c.dim));
  if (!c.tie_embeddings) group.matrices.push_back(matrix("lm_head.weight", model.vocab, c.dim));
  group.vectors.push_back(vector("model.norm.weight", c.dim));
}

/// Adds a LayerNorm's weight and bias, one after the other.
void add_layer_norm(Group& group, const std::string& name, std::int64_t dim) {
  group.vectors.push_back(vector(name + ".weight", dim));
  group.vectors.push_back(vector(name + ".bias", dim, Init::zero));
}

void add_gpt2_layer(Group& group, const ModelConfig& c, std::int64_t layer) {
  const auto prefix = "transformer.h." + std::to_string(layer) + ".";
  const auto add_linear = [&](const std::string& name, std::int64_t in, std::int64_t out, Init init) {
    group.matrices.push_back(matrix(prefix + name + ".weight", in, out, init));
    group.vectors.push_back(vector(prefix + name + ".bias", out, Init::zero));
  };
  add_linear("attn.c_attn", c.dim, 3 * c.dim, Init::normal);
  add_linear("attn.c_proj", c.dim, c.dim, Init::residual);
  add_linear("mlp.c_fc", c.dim, c.ffn_dim, Init::normal);
  add_linear("mlp.c_proj", c.ffn_dim, c.dim, Init::residual);
  add_layer_norm(group, prefix + "ln_1", c.dim);
  add_layer_norm(group, prefix + "ln_2", c.dim);
}

void add_gpt2_ends(Group& group, const ModelShape& model) {
  const auto& c = model.config;
  group.matrices.push_back(matrix("transformer.wte.weight", model.vocab, c.dim));
  group.matrices.push_back(matrix("transformer.wpe.weight", c.positions, c.dim));
  if (!c.tie_embeddings) group.matrices.push_back(matrix("lm_head.weight", model.vocab, c.dim));
  add_layer_norm(group, "transformer.ln_f", c.dim);
}

std::vector<Group> group_tensors(const ModelShape& model, std::int64_t fragments) {
  const auto layers = model.config.layers;
  const auto add_layer = model.config.is_gpt2() ? add_gpt2_layer : add_llama_layer;
  const auto add_ends = model.config.is_gpt2() ? add_gpt2_ends : add_llama_ends;
  const bool by_layer = fragments > 1 && fragments <= layers + 1;
  std::vector<Group> groups(by_layer ? static_cast<std::size_t>(fragments) : 1);
  const auto layer_groups = by_layer ? groups.size() - 1 : 1;
  for (std::int64_t l = 0; l < layers; ++l)
    add_layer(groups[static_cast<std::size_t>(l) % layer_groups], model.config, l);
  add_ends(groups.back(), model);
  return groups;
}

std::vector<Range> cut_evenly(std::uint64_t size, std::int64_t fragments) {
  const auto parts = static_cast<std::uint64_t>(fragments);
  if (parts > size) {
    config_error("outer.num_fragments is " + std::to_string(fragments) + " and the model has " +
                 std::to_string(size) + " parameters; expected at most one fragment per parameter");
  }
  // The first size mod P parts have one more element: this avoids a product that could overflow.
  std::vector<Range> ranges;
  std::uint64_t begin = 0;
  for (std::uint64_t p = 0; p < parts; ++p) {
    const auto length = size / parts + (p < size % parts ? 1 : 0);
    ranges.push_back({begin, length});
    begin += length;
  }
  return ranges;
}

}  // namespace

/// Places groups one after another.
struct ParameterTable::Builder {
  ParameterTable& table;
  std::uint64_t end = 0;

  Range place(std::vector<TensorEntry>& entries) {
    const auto begin = end;
    for (auto& entry : entries) {
      entry.range = {end, elements(entry.shape)};
      end = entry.range.end();
      table.tensors_.push_back(std::move(entry));
    }
    return {begin, end - begin};
  }
  Range place(Group& group) {
    end = (end + fragment_alignment - 1) / fragment_alignment * fragment_alignment;
    const auto matrices = place(group.matrices);
    table.decay_ranges_.push_back(matrices);
    return {matrices.begin, matrices.size + place(group.vectors).size};
  }
};

ParameterTable::ParameterTable(const ModelShape& model, std::int64_t fragments, std::uint64_t chunk_elements)
    : model_(model) {
  Builder builder{*this};
  std::vector<Range> ranges;
  for (auto& group : group_tensors(model_, fragments)) ranges.push_back(builder.place(group));
  if (fragments > model_.config.layers + 1) ranges = cut_evenly(builder.end, fragments);
  layout_ = FragmentLayout(std::move(ranges), chunk_elements);
}

const TensorEntry& ParameterTable::tensor(const std::string& name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  if (found == tensors_.end()) throw std::out_of_range("the model has no tensor " + name);
  return *found;
}

namespace {

std::string settings(const ModelShape& model) {
  const auto& c = model.config;
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(15);
  if (c.is_gpt2()) text << "GPT-2, ";
  text << c.layers << " layers, dim " << c.dim << ", " << c.heads << " heads (" << c.kv_heads
       << " of keys and values), feed-forward " << c.ffn_dim << (c.tie_embeddings ? ", tied" : ", untied")
       << " head, ";
  if (c.is_gpt2())
    text << c.positions << " positions";
  else
    text << (c.qk_norm ? "" : "no ") << "QK-norm, theta " << c.rope_theta;
  text << ", eps " << c.norm_eps << ", vocabulary " << model.vocab;
  return text.str();
}

}  // namespace

Digest ParameterTable::fingerprint() const {
  Hasher hasher;
  hasher.update(settings(model_));
  for (const auto& t : tensors_) {
    hasher.update(std::uint64_t{t.name.size()}).update(t.name).update(std::uint64_t{t.shape.size()});
    for (const auto extent : t.shape) hasher.update(static_cast<std::uint64_t>(extent));
    hasher.update(t.range.begin).update(t.range.size);
  }
  for (const auto& f : layout_.fragments()) hasher.update(f.begin).update(f.size);
  return hasher.finish();
}

std::string ParameterTable::description() const {
  const auto fragments = layout_.fragments();
  std::string sizes;
  constexpr std::size_t shown = 4;
  for (std::size_t p = 0; p < std::min(shown, fragments.size()); ++p) {
    sizes += (p > 0 ? ", " : "") + std::to_string(fragments[p].size);
  }
  if (fragments.size() > shown) sizes += ", ...";
  return settings(model_) + "; " + std::to_string(parameters()) + " parameters in " +
         std::to_string(fragments.size()) + (fragments.size() == 1 ? " fragment (" : " fragments (") + sizes +
         ")";
}

std::vector<outer_sync::log::LoggedTensor> logged_tensors(const ParameterTable& table) {
  std::vector<outer_sync::log::LoggedTensor> out;
  for (const auto& tensor : table.tensors()) out.push_back({tensor.name, tensor.shape, tensor.range});
  return out;
}

namespace {

/// A separate random stream for each tensor name (FNV-1a, 64 bits).
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

float normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index, double std) {
  std::uint64_t sum = 6;  // half a unit for each of the twelve numbers, which centres them
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto bits = random_bits(seed, stream, index * 4 + i);
    constexpr std::uint64_t mask = (1U << 21) - 1;
    sum += (bits & mask) + ((bits >> 21) & mask) + ((bits >> 42) & mask);
  }
  return static_cast<float>((static_cast<double>(sum) * 0x1p-21 - 6) * std);
}

}  // namespace

std::vector<float> initial_parameters(const ParameterTable& table, std::uint64_t seed) {
  const auto& config = table.model().config;
  const double residual_std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers));
  std::vector<float> buffer(table.buffer_size(), 0.0F);
  for (const auto& tensor : table.tensors()) {
    const auto out = std::span(buffer).subspan(tensor.range.begin, tensor.range.size);
    if (tensor.init == Init::one) std::fill(out.begin(), out.end(), 1.0F);
    if (tensor.init == Init::one || tensor.init == Init::zero) continue;
    const double std = tensor.init == Init::residual ? residual_std : config.init_std;
    const auto stream = stream_of(tensor.name);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = normal(seed, stream, i, std);
  }
  return buffer;
}

}  // namespace isthmus::trainer
