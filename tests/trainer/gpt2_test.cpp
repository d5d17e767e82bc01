// Compares GPT-2 with a plain composition in double and its fused parts with plain ones, and checks
// recomputed layers in both architectures.

#include <cmath>

#include "model_support.h"
#include "ops/ops.h"

namespace isthmus::trainer {
namespace {

class Gpt2Reference {
 public:
  Gpt2Reference(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {}

  Tensor loss(const Tensor& inputs_BT, const Tensor& targets_BT) const {
    Tensor x_BTC = weights_["transformer.wte.weight"].index({inputs_BT}) +
                   weights_["transformer.wpe.weight"].narrow(0, 0, inputs_BT.size(1));
    for (std::int64_t l = 0; l < config_.layers; ++l) {
      const auto at = "transformer.h." + std::to_string(l) + ".";
      x_BTC = x_BTC + attention(at + "attn.", norm(x_BTC, at + "ln_1"));
      const auto up = project(norm(x_BTC, at + "ln_2"), at + "mlp.c_fc");
      const auto u = std::sqrt(2 / M_PI) * (up + 0.044715 * up.pow(3));
      x_BTC = x_BTC + project(0.5 * up * (1 + u.tanh()), at + "mlp.c_proj");
    }
    const auto head = config_.tie_embeddings ? "transformer.wte.weight" : "lm_head.weight";
    const auto logits = at::matmul(norm(x_BTC, "transformer.ln_f"), weights_[head].t());
    return -at::log_softmax(logits, -1).gather(-1, targets_BT.unsqueeze(-1)).mean();
  }

 private:
  Tensor project(const Tensor& x, const std::string& name) const {
    return at::matmul(x, weights_[name + ".weight"]) + weights_[name + ".bias"];
  }
  Tensor norm(const Tensor& x, const std::string& name) const {
    const auto centred = x - x.mean(-1, true);
    const auto deviation = (centred.square().mean(-1, true) + config_.norm_eps).sqrt();
    return centred / deviation * weights_[name + ".weight"] + weights_[name + ".bias"];
  }
  Tensor attention(const std::string& at, const Tensor& h_BTC) const {
    const auto b = h_BTC.size(0), t = h_BTC.size(1);
    const auto parts = project(h_BTC, at + "c_attn").chunk(3, -1);
    const auto heads = [&](int part) {
      return parts[part].reshape({b, t, config_.heads, -1}).transpose(1, 2);
    };
    const auto later = at::ones({t, t}, at::kBool).triu(1);
    const auto scores =
        at::matmul(heads(0), heads(1).transpose(-1, -2)) / std::sqrt(static_cast<double>(config_.head_dim()));
    const auto weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
    return project(at::matmul(weights, heads(2)).transpose(1, 2).reshape({b, t, -1}), at + "c_proj");
  }

  ModelConfig config_;
  const Weights& weights_;
};

TEST(Gpt2, LossAndGradientsAreThoseOfThePlainComposition) {
  for (const bool tied : {false, true}) {
    FlatModel flat({small_gpt2_shape(tied), 3, 1024});
    expect_like_reference<Gpt2Reference>(flat, 1e-5, 1e-4);
  }
}

TEST(Gpt2, Bf16IsNear) {
  FlatModel flat({small_gpt2_shape(), 3, 1024}, at::kBFloat16);
  expect_like_reference<Gpt2Reference>(flat, 0.02, 0.08);
}

TEST(Gpt2, ADocumentsLossIsThatOfItsTokensAlone) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t separator = 30;
  const FlatModel bounded({small_gpt2_shape(), 3, 1024}, at::kFloat, {.longest = 12, .separator = separator});
  const FlatModel unbounded({small_gpt2_shape(), 3, 1024});
  const auto packed = at::tensor({1, 2, 3, 4, 30, 7, 8, 9, 10, 30}, at::kLong).unsqueeze(0);
  const auto targets = at::tensor({2, 3, 4, 30, 7, 8, 9, 10, 30, 5}, at::kLong).unsqueeze(0);
  const auto loss = [](const FlatModel& flat, const Tensor& ids, const Tensor& of) {
    return flat.model->loss(ids, of).item<double>();
  };
  const auto half = [](const Tensor& ids, std::int64_t begin) { return ids.narrow(1, begin, 5); };
  const auto alone = (loss(unbounded, half(packed, 0), half(targets, 0)) +
                      loss(unbounded, half(packed, 5), half(targets, 5))) /
                     2;
  EXPECT_NEAR(loss(bounded, packed, targets), alone, 1e-5)
      << "positions must count from the beginning of a document";
  EXPECT_GT(std::abs(loss(unbounded, packed, targets) - alone), 1e-4);
}

TEST(Gpt2, APositionIsToldFromAnother) {
  const at::NoGradGuard no_grad;
  const FlatModel flat({small_gpt2_shape(), 3, 1024});
  const auto same = at::full({1, 8}, 3, at::kLong);
  EXPECT_FALSE(at::equal(flat.model->next_logits(same.narrow(1, 0, 1)), flat.model->next_logits(same)));
}

TEST(Fused, AddLayerNorm) {
  const auto x = leaf({300, 37}, 1), delta = leaf({300, 37}, 2), affine = leaf({2 * 37}, 3);
  const auto fused = fused::add_layer_norm(x, delta, affine, 1e-5);
  const auto plain = plain::add_layer_norm(x, delta, affine, 1e-5);
  expect_same_gradients(at::cat({fused.first, fused.second}), at::cat({plain.first, plain.second}),
                        {x, delta, affine});
  expect_same_gradients(fused::add_layer_norm(x, delta, affine, 1e-5).second,
                        plain::add_layer_norm(x, delta, affine, 1e-5).second, {x, delta, affine});
}

TEST(Fused, ProductOfGelu) {
  const auto x = leaf({130, 45}, 1), weight = leaf({45, 30}, 2), bias = leaf({30}, 3);
  const Product by{.weight = weight, .bias = bias, .input_first = true};
  expect_same_gradients(fused::product(x, by), plain::product(x, by), {x, weight, bias});
  expect_same_gradients(fused::gelu_product(x, by), plain::gelu_product(x, by), {x, weight, bias});
  const auto large = at::tensor({-200.0F, -9.0F, 9.0F, 200.0F}).view({1, 4}).requires_grad_();
  const Product same{.weight = at::eye(4), .bias = at::zeros({4}), .input_first = true};
  expect_same_gradients(fused::gelu_product(large, same), plain::gelu_product(large, same), {large});
}

TEST(RecomputedLayers, GiveTheSameBits) {
  const auto [inputs, targets] = tokens();
  for (const auto& shape : {small_shape(), small_gpt2_shape()}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      FlatModel kept({shape, 3, 1024}, type);
      FlatModel recomputed({shape, 3, 1024}, type, {.longest = 12, .separator = 3, .recompute_layers = true});
      FlatModel bounded({shape, 3, 1024}, type, {.longest = 12, .separator = 3});
      const auto loss = [&](FlatModel& flat) {
        const auto value = flat.model->loss(inputs, targets);
        value.backward();
        return value.item<float>();
      };
      EXPECT_EQ(loss(recomputed), loss(bounded));
      EXPECT_TRUE(at::equal(recomputed.gradient, bounded.gradient));
      EXPECT_TRUE(recomputed.model->gradients_in_place());
      EXPECT_NE(loss(kept), loss(bounded)) << "recomputed layers must respect document boundaries";
    }
  }
}

}  // namespace
}  // namespace isthmus::trainer
