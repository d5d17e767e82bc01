#include "model.h"

#include <torch/torch.h>

#include <cmath>

namespace isthmus::trainer {

using at::Tensor;

namespace {

/// Makes leaves over ranges of the flat buffers.
struct Leaves {
  const ParameterTable& table;
  const Tensor& flat;
  const Tensor& flat_gradient;
  std::vector<std::pair<Tensor, void*>>& all;

  /// One leaf over tensors that follow each other in the buffer and have equal rows.
  Tensor stacked(const std::vector<std::string>& names) const {
    const auto& first = table.tensor(names.front());
    auto shape = first.shape;
    shape[0] = 0;
    auto end = first.range.begin;
    for (const auto& name : names) {
      const auto& entry = table.tensor(name);
      TORCH_CHECK(entry.range.begin == end, name, " does not follow its neighbour in the buffer");
      shape[0] += entry.shape[0];
      end = entry.range.end();
    }
    const auto view = [&](const Tensor& buffer) {
      const auto begin = static_cast<std::int64_t>(first.range.begin);
      return buffer.detach().narrow(0, begin, static_cast<std::int64_t>(end) - begin).view(shape).detach();
    };
    auto leaf = view(flat);
    if (flat_gradient.defined()) {
      leaf.set_requires_grad(true);
      leaf.mutable_grad() = view(flat_gradient);
      all.emplace_back(leaf, leaf.grad().data_ptr());
    }
    return leaf;
  }
  Tensor operator()(const std::string& name) const { return stacked({name}); }
};

/// cos and sin of position * theta^(-2i/D), [T, D/2]. Local arithmetic: the C library's cosine will do.
std::pair<Tensor, Tensor> rotations(const ModelConfig& config, std::int64_t longest,
                                    const at::TensorOptions& options) {
  const auto half = config.head_dim() / 2;
  const auto index = at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half));
  const auto angles = at::outer(at::arange(longest, at::kDouble), at::pow(config.rope_theta, index));
  const auto fp32 = options.dtype(at::kFloat);
  return {angles.cos().to(fp32), angles.sin().to(fp32)};
}

}  // namespace

Model::Model(const ParameterTable& table, std::int64_t longest, const Tensor& flat,
             const Tensor& flat_gradient, std::int64_t separator)
    : config_(table.model().config), separator_(separator) {
  const Leaves leaf{table, flat, flat_gradient, leaves_};
  embedding_VC = leaf("model.embed_tokens.weight");
  for (std::int64_t l = 0; l < config_.layers; ++l) {
    const auto at = "model.layers." + std::to_string(l) + ".";
    const auto attention = at + "self_attn.";
    layers_.push_back({.input_norm_C = leaf(at + "input_layernorm.weight"),
                       .qkv_EC = leaf.stacked({attention + "q_proj.weight", attention + "k_proj.weight",
                                               attention + "v_proj.weight"}),
                       .qk_norms_2D = config_.qk_norm ? leaf.stacked({attention + "q_norm.weight",
                                                                      attention + "k_norm.weight"})
                                                      : at::empty({0}, flat.options()),
                       .o_CC = leaf(attention + "o_proj.weight"),
                       .post_norm_C = leaf(at + "post_attention_layernorm.weight"),
                       .gate_up_2FC = leaf.stacked({at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"}),
                       .down_CF = leaf(at + "mlp.down_proj.weight")});
  }
  final_norm_C = leaf("model.norm.weight");
  head_VC = config_.tie_embeddings ? embedding_VC : leaf("lm_head.weight");
  attention_ = {.heads = config_.heads,
                .kv_heads = config_.kv_heads,
                .head_dim = config_.head_dim(),
                .norm_eps = config_.norm_eps,
                .cos_TD2 = {},
                .sin_TD2 = {},
                .begins_BT = {}};
  std::tie(attention_.cos_TD2, attention_.sin_TD2) = rotations(config_, longest, flat.options());
}

Tensor Model::hidden(const Tensor& tokens_BT) const {
  const bool on_cpu = tokens_BT.is_cpu();
  const auto add_norm = on_cpu ? fused::add_norm : plain::add_norm;
  const auto swiglu = on_cpu ? fused::swiglu : plain::swiglu;
  const auto attend = on_cpu ? fused::attention : plain::attention;
  const auto embed = on_cpu ? fused::embed : plain::embed;
  const auto eps = config_.norm_eps;
  auto shape = attention_;
  shape.sequences = tokens_BT.size(0);
  shape.length = tokens_BT.size(1);
  if (separator_ >= 0) shape.begins_BT = document_begins(tokens_BT, separator_);

  Tensor residual_NC = embed(embedding_VC, tokens_BT.reshape({-1}));
  Tensor delta_NC;  // what the last half layer adds; added by the next norm
  Tensor h_NC;
  for (const auto& layer : layers_) {
    std::tie(residual_NC, h_NC) = add_norm(residual_NC, delta_NC, layer.input_norm_C, eps);
    delta_NC = at::linear(attend(shape, at::linear(h_NC, layer.qkv_EC), layer.qk_norms_2D), layer.o_CC);
    std::tie(residual_NC, h_NC) = add_norm(residual_NC, delta_NC, layer.post_norm_C, eps);
    delta_NC = at::linear(swiglu(at::linear(h_NC, layer.gate_up_2FC)), layer.down_CF);
  }
  return add_norm(residual_NC, delta_NC, final_norm_C, eps).second;
}

Tensor Model::loss(const Tensor& inputs_BT, const Tensor& targets_BT) const {
  return fused::head_loss(hidden(inputs_BT), head_VC, targets_BT.reshape({-1}));
}

Tensor Model::next_logits(const Tensor& tokens_1T) const {
  const auto h_NC = hidden(tokens_1T);
  return at::linear(h_NC.narrow(0, h_NC.size(0) - 1, 1), head_VC).to(at::kFloat).view({-1});
}

bool Model::gradients_in_place() const {
  return std::all_of(leaves_.begin(), leaves_.end(), [](const auto& leaf) {
    return leaf.first.grad().defined() && leaf.first.grad().data_ptr() == leaf.second;
  });
}

}  // namespace isthmus::trainer
