#include <ATen/ATen.h>

#include "models/decoder.h"
#include "models/shared_sequences.h"

namespace isthmus::trainer {

using at::Tensor;

namespace {

class Llama final : public Decoder {
 public:
  explicit Llama(const Leaves& leaf)
      : eps_(leaf.table.model().config.norm_eps), embedding_VC_(leaf("model.embed_tokens.weight")) {
    const auto& config = leaf.table.model().config;
    for (std::int64_t l = 0; l < config.layers; ++l) {
      const auto at = "model.layers." + std::to_string(l) + ".";
      const auto attention = at + "self_attn.";
      layers_.push_back(
          {.input_norm_C = leaf(at + "input_layernorm.weight"),
           .qkv_EC = leaf.stacked(
               {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}),
           .qk_norms_2D = config.qk_norm
                              ? leaf.stacked({attention + "q_norm.weight", attention + "k_norm.weight"})
                              : at::empty({0}, leaf.flat.options()),
           .o_CC = leaf(attention + "o_proj.weight"),
           .post_norm_C = leaf(at + "post_attention_layernorm.weight"),
           .gate_up_2FC = leaf.stacked({at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"}),
           .down_CF = leaf(at + "mlp.down_proj.weight")});
    }
    final_norm_C_ = leaf("model.norm.weight");
    head_VC_ = config.tie_embeddings ? embedding_VC_ : leaf("lm_head.weight");
  }

  Stream embed(const Tensor& tokens_BT, const Tensor&) const override {
    return {ops_on(tokens_BT).embed(embedding_VC_, tokens_BT.reshape({-1})), {}};
  }

  Stream layer(std::size_t index, const AttentionShape& shape, const Stream& stream) const override {
    const auto& layer = layers_[index];
    const auto& ops = ops_on(stream.residual_NC);
    auto [residual_NC, h_NC] = ops.add_norm(stream.residual_NC, stream.delta_NC, layer.input_norm_C, eps_);
    const auto delta_NC =
        ops.product(attention(shape, ops.product(h_NC, {layer.qkv_EC}), layer.qk_norms_2D), {layer.o_CC});
    std::tie(residual_NC, h_NC) = ops.add_norm(residual_NC, delta_NC, layer.post_norm_C, eps_);
    return {residual_NC, ops.swiglu_product(ops.product(h_NC, {layer.gate_up_2FC}), {layer.down_CF})};
  }

  Tensor final_norm(const Stream& stream) const override {
    const auto& ops = ops_on(stream.residual_NC);
    return ops.add_norm(stream.residual_NC, stream.delta_NC, final_norm_C_, eps_).second;
  }
  Tensor head_VC() const override { return head_VC_; }

 private:
  struct Layer {
    Tensor input_norm_C, qkv_EC, qk_norms_2D, o_CC;
    Tensor post_norm_C, gate_up_2FC, down_CF;
  };
  double eps_;
  std::vector<Layer> layers_;
  Tensor embedding_VC_, final_norm_C_, head_VC_;
};

}  // namespace

std::unique_ptr<const Decoder> make_llama(const Leaves& leaf) { return std::make_unique<Llama>(leaf); }

}  // namespace isthmus::trainer
