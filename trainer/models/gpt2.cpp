#include <ATen/ATen.h>

#include "models/decoder.h"
#include "models/shared_sequences.h"

namespace isthmus::trainer {

using at::Tensor;

namespace {

class Gpt2 final : public Decoder {
 public:
  explicit Gpt2(const Leaves& leaf)
      : eps_(leaf.table.model().config.norm_eps),
        tokens_VC_(leaf("transformer.wte.weight")),
        positions_PC_(leaf("transformer.wpe.weight")),
        no_qk_norms_(at::empty({0}, leaf.flat.options())) {
    const auto& config = leaf.table.model().config;
    const auto linear = [&](const std::string& name) {
      return Product{.weight = leaf(name + ".weight"), .bias = leaf(name + ".bias"), .input_first = true};
    };
    const auto norm = [&](const std::string& name) {
      return leaf.stacked({name + ".weight", name + ".bias"});
    };
    for (std::int64_t l = 0; l < config.layers; ++l) {
      const auto at = "transformer.h." + std::to_string(l) + ".";
      layers_.push_back({.norm1_2C = norm(at + "ln_1"),
                         .norm2_2C = norm(at + "ln_2"),
                         .qkv = linear(at + "attn.c_attn"),
                         .out = linear(at + "attn.c_proj"),
                         .up = linear(at + "mlp.c_fc"),
                         .down = linear(at + "mlp.c_proj")});
    }
    final_norm_2C_ = norm("transformer.ln_f");
    head_VC_ = config.tie_embeddings ? tokens_VC_ : leaf("lm_head.weight");
  }

  Stream embed(const Tensor& tokens_BT, const Tensor& positions_BT) const override {
    const auto& ops = ops_on(tokens_BT);
    return {ops.embed(tokens_VC_, tokens_BT.reshape({-1})),
            ops.embed(positions_PC_, positions_BT.reshape({-1}))};
  }

  Stream layer(std::size_t index, const AttentionShape& shape, const Stream& stream) const override {
    const auto& layer = layers_[index];
    const auto& ops = ops_on(stream.residual_NC);
    auto [residual_NC, h_NC] = ops.add_layer_norm(stream.residual_NC, stream.delta_NC, layer.norm1_2C, eps_);
    const auto delta_NC =
        ops.product(attention(shape, ops.product(h_NC, layer.qkv), no_qk_norms_), layer.out);
    std::tie(residual_NC, h_NC) = ops.add_layer_norm(residual_NC, delta_NC, layer.norm2_2C, eps_);
    return {residual_NC, ops.gelu_product(ops.product(h_NC, layer.up), layer.down)};
  }

  Tensor final_norm(const Stream& stream) const override {
    const auto& ops = ops_on(stream.residual_NC);
    return ops.add_layer_norm(stream.residual_NC, stream.delta_NC, final_norm_2C_, eps_).second;
  }
  Tensor head_VC() const override { return head_VC_; }

 private:
  struct Layer {
    Tensor norm1_2C, norm2_2C;  ///< weight and bias
    Product qkv, out, up, down;
  };
  double eps_;
  std::vector<Layer> layers_;
  Tensor tokens_VC_, positions_PC_, no_qk_norms_, final_norm_2C_, head_VC_;
};

}  // namespace

std::unique_ptr<const Decoder> make_gpt2(const Leaves& leaf) { return std::make_unique<Gpt2>(leaf); }

}  // namespace isthmus::trainer
