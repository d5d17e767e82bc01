// Compares the model with a plain composition in double, and its fused parts with plain ones.

#include "models/model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model_support.h"
#include "ops/document_spans.h"
#include "ops/ops.h"

namespace isthmus::trainer {
namespace {

class LlamaReference {
 public:
  LlamaReference(const ModelConfig& config, const Weights& weights) : config_(config), weights_(weights) {}

  Tensor loss(const Tensor& inputs_BT, const Tensor& targets_BT) const {
    Tensor x_BTC = weights_["model.embed_tokens.weight"].index({inputs_BT});
    for (std::int64_t l = 0; l < config_.layers; ++l) {
      const auto at = "model.layers." + std::to_string(l) + ".";
      x_BTC = x_BTC + attention(at + "self_attn.", norm(x_BTC, at + "input_layernorm.weight"));
      const auto h = norm(x_BTC, at + "post_attention_layernorm.weight");
      const auto gate = project(h, at + "mlp.gate_proj.weight");
      x_BTC = x_BTC + project(gate * at::sigmoid(gate) * project(h, at + "mlp.up_proj.weight"),
                              at + "mlp.down_proj.weight");
    }
    const auto head = config_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    const auto logits = project(norm(x_BTC, "model.norm.weight"), head);
    return -at::log_softmax(logits, -1).gather(-1, targets_BT.unsqueeze(-1)).mean();
  }

 private:
  Tensor project(const Tensor& x, const std::string& name) const { return at::matmul(x, weights_[name].t()); }
  Tensor norm(const Tensor& x, const std::string& name) const {
    return x / (x.square().mean(-1, true) + config_.norm_eps).sqrt() * weights_[name];
  }
  Tensor rotated(const Tensor& x_BTHD) const {
    const auto half = config_.head_dim() / 2;
    const auto length = x_BTHD.size(1);
    auto angles = at::empty({length, 1, half}, at::kDouble);
    for (std::int64_t t = 0; t < length; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double exponent = -static_cast<double>(i) / static_cast<double>(half);
        angles[t][0][i] = static_cast<double>(t) * std::pow(config_.rope_theta, exponent);
      }
    }
    const auto a = x_BTHD.narrow(-1, 0, half), b = x_BTHD.narrow(-1, half, half);
    return at::cat({a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()}, -1);
  }
  Tensor attention(const std::string& at, const Tensor& h_BTC) const {
    const auto b = h_BTC.size(0), t = h_BTC.size(1), d = config_.head_dim();
    const auto heads = [&](const std::string& name) {
      return project(h_BTC, at + name + "_proj.weight").view({b, t, -1, d});
    };
    const auto normed = [&](const Tensor& x, const std::string& name) {
      return config_.qk_norm ? norm(x, at + name + "_norm.weight") : x;
    };
    const auto group = config_.heads / config_.kv_heads;
    const auto q = rotated(normed(heads("q"), "q")).transpose(1, 2);
    const auto k = rotated(normed(heads("k"), "k")).repeat_interleave(group, 2).transpose(1, 2);
    const auto v = heads("v").repeat_interleave(group, 2).transpose(1, 2);
    const auto later = at::ones({t, t}, at::kBool).triu(1);
    const auto scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
    const auto weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
    return project(at::matmul(weights, v).transpose(1, 2).reshape({b, t, -1}), at + "o_proj.weight");
  }

  ModelConfig config_;
  const Weights& weights_;
};

TEST(Model, LossAndGradientsAreThoseOfThePlainComposition) {
  for (const bool tied : {false, true}) {
    FlatModel flat(small_table(3, tied));
    expect_like_reference<LlamaReference>(flat, 1e-5, 1e-4);
  }
}

TEST(Model, WithoutQkNormAndWithAsManyKeyHeads) {
  auto shape = small_shape();
  shape.config.qk_norm = false;
  shape.config.kv_heads = 4;
  FlatModel flat({shape, 1, 1024});
  expect_like_reference<LlamaReference>(flat, 1e-5, 1e-4);
}

TEST(Model, Bf16IsNear) {
  FlatModel flat(small_table(), at::kBFloat16);
  expect_like_reference<LlamaReference>(flat, 0.02, 0.08);
}

TEST(Model, PaddingHasNoGradient) {
  FlatModel flat(small_table());
  const auto [inputs, targets] = tokens();
  flat.model->loss(inputs, targets).backward();
  const auto fragments = flat.table.layout().fragments();
  for (std::size_t p = 1; p < fragments.size(); ++p) {
    for (auto i = fragments[p - 1].end(); i < fragments[p].begin; ++i) {
      EXPECT_EQ(flat.gradient[static_cast<std::int64_t>(i)].item<float>(), 0);
    }
  }
}

TEST(Model, GradientsAddUpInPlace) {
  FlatModel flat(small_table());
  const auto [inputs, targets] = tokens();
  flat.model->loss(inputs, targets).backward();
  const auto once = flat.gradient.clone();
  flat.model->loss(inputs, targets).backward();
  EXPECT_LT(relative_error(flat.gradient, 2 * once), 1e-6);
  EXPECT_TRUE(flat.model->gradients_in_place());
}

TEST(Model, LaterTokensDoNotReachBack) {
  const at::NoGradGuard no_grad;
  FlatModel flat(small_table());
  const auto [inputs, targets] = tokens(1);
  const auto before = flat.model->next_logits(inputs.narrow(1, 0, 5));
  auto [changed, unused] = tokens(1);
  changed.narrow(1, 5, 7).add_(1).remainder_(31);
  // The mean loss over the first five positions must not depend on later tokens.
  EXPECT_TRUE(at::equal(before, flat.model->next_logits(changed.narrow(1, 0, 5))));
  EXPECT_TRUE(at::allclose(before, flat.model->next_logits(changed, 4), 1e-5, 1e-5));
  const auto loss = [&](const Tensor& ids) {
    return flat.model->loss(ids.narrow(1, 0, 6), targets.narrow(1, 0, 6)).item<float>() * 6;
  };
  const auto first_five = flat.model->loss(inputs.narrow(1, 0, 5), targets.narrow(1, 0, 5)).item<float>() * 5;
  EXPECT_GT(loss(inputs) - first_five, 0);
  EXPECT_GT(loss(changed) - first_five, 0);
  EXPECT_NE(loss(changed), loss(inputs));
}

TEST(Model, ADocumentsLossIsThatOfItsTokensAlone) {
  const at::NoGradGuard no_grad;
  const auto table = small_table();
  const auto values = initial_parameters(table, 3);
  const auto flat = at::tensor(values, at::kFloat);
  constexpr std::int64_t separator = 30;
  const Model bounded(table, {.longest = 12, .separator = separator}, flat, {});
  const Model unbounded(table, {.longest = 12}, flat, {});
  // Two documents of 5 tokens with their separators. The second one's position in the row does not matter,
  // since rotary positions are relative.
  const auto packed = at::tensor({1, 2, 3, 4, 30, 7, 8, 9, 10, 30}, at::kLong).unsqueeze(0);
  const auto targets = at::tensor({2, 3, 4, 30, 7, 8, 9, 10, 30, 5}, at::kLong).unsqueeze(0);
  const auto loss = [](const Model& model, const Tensor& ids, const Tensor& of) {
    return model.loss(ids, of).item<double>();
  };
  const auto half = [&](const Tensor& ids, std::int64_t begin) { return ids.narrow(1, begin, 5); };
  const auto alone = (loss(unbounded, half(packed, 0), half(targets, 0)) +
                      loss(unbounded, half(packed, 5), half(targets, 5))) /
                     2;
  EXPECT_NEAR(loss(bounded, packed, targets), alone, 1e-5);
  EXPECT_GT(std::abs(loss(unbounded, packed, targets) - alone), 1e-4);
  const auto begins = document_begins(packed, separator);
  EXPECT_TRUE(at::equal(begins[0], at::tensor({0, 0, 0, 0, 0, 5, 5, 5, 5, 5}, at::kInt)));
  EXPECT_TRUE(at::equal(document_begins(at::full({2, 1}, 30, at::kLong), 30), at::zeros({2, 1}, at::kInt)));
}

// ---- fused and plain parts, with lengths that are not multiples of a vector ----

TEST(Fused, AddNorm) {
  const auto x = leaf({300, 37}, 1), delta = leaf({300, 37}, 2), weight = leaf({37}, 3);
  const auto fused = fused::add_norm(x, delta, weight, 1e-5);
  const auto plain = plain::add_norm(x, delta, weight, 1e-5);
  expect_same_gradients(at::cat({fused.first, fused.second}), at::cat({plain.first, plain.second}),
                        {x, delta, weight});
  expect_same_gradients(fused::add_norm(x, delta, weight, 1e-5).second,
                        plain::add_norm(x, delta, weight, 1e-5).second, {x, delta, weight});
  expect_same_gradients(fused::add_norm(x, {}, weight, 1e-5).second,
                        plain::add_norm(x, {}, weight, 1e-5).second, {x, weight});
}

TEST(Fused, ProductOfSwiGlu) {
  const auto x = leaf({130, 2 * 45}, 1), weight = leaf({30, 45}, 2);
  expect_same_gradients(fused::swiglu_product(x, {weight}), plain::swiglu_product(x, {weight}), {x, weight});
}

TEST(Fused, ProductOfSwiGluOfLargeNumbers) {
  const auto x =
      at::tensor({-200.0F, -90.0F, 90.0F, 200.0F, 1.0F, 1.0F, 1.0F, 1.0F}).view({1, 8}).requires_grad_();
  const Product same{at::eye(4)};
  expect_same_gradients(fused::swiglu_product(x, same), plain::swiglu_product(x, same), {x});
}

TEST(Fused, AWeightThatHasAGradientGetsTheNextOneOnTopOfIt) {
  const auto x = leaf({40, 24}, 1), ids = at::arange(20, at::kLong) % 7;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto fresh = random({12, 24}, 2).to(type).requires_grad_(), so_far = random({12, 24}, 3).to(type);
    const auto held = fresh.detach().requires_grad_();
    held.mutable_grad() = so_far.clone();
    const auto address = held.grad().data_ptr();
    const auto gradient_of = [&](const Tensor& weight) {
      const auto sum = fused::product(x.to(type), {weight}).sum() + fused::embed(weight, ids).square().sum();
      sum.backward();
      return weight.grad();
    };
    const auto expected = gradient_of(fresh) + so_far;
    EXPECT_LT(relative_error(gradient_of(held), expected), type == at::kFloat ? 1e-6 : 1e-2);
    EXPECT_EQ(held.grad().data_ptr(), address);
  }
}

AttentionShape attention_shape(std::int64_t kv_heads, std::int64_t length = 21) {
  AttentionShape s{.sequences = 2,
                   .length = length,
                   .heads = 6,
                   .kv_heads = kv_heads,
                   .head_dim = 10,
                   .norm_eps = 1e-5,
                   .cos_TD2 = {},
                   .sin_TD2 = {},
                   .begins_BT = {}};
  const auto angles = at::outer(at::arange(320, at::kFloat), random({5}, 9).abs());
  s.cos_TD2 = angles.cos();
  s.sin_TD2 = angles.sin();
  return s;
}

/// Compares both forms, with norms and without.
void expect_same_attention(const AttentionShape& s) {
  const auto width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const auto qkv = leaf({s.sequences * s.length, width}, 1), norms = leaf({2 * s.head_dim}, 2),
             none = at::empty({0});
  expect_same_gradients(fused::attention(s, qkv, norms), plain::attention(s, qkv, norms), {qkv, norms});
  expect_same_gradients(fused::attention(s, qkv, none), plain::attention(s, qkv, none), {qkv});
}

TEST(Fused, Attention) {
  for (const std::int64_t kv_heads : {1, 2, 6}) {
    auto s = attention_shape(kv_heads);
    expect_same_attention(s);
    const auto tokens = at::arange(s.sequences * s.length).view({s.sequences, s.length}).remainder(5);
    s.begins_BT = document_begins(tokens, 3);
    expect_same_attention(s);
  }
}

/// Stored weights, recomputed weights, and ATen's flash attention.
TEST(Fused, AttentionOfLongerSequences) {
  for (const std::int64_t length : {40, 41, 255, 256, 300}) {
    for (const std::int64_t kv_heads : {2, 6}) {
      expect_same_attention(attention_shape(kv_heads, length));
    }
  }
}

/// Documents longer and shorter than a part of its own, and a sequence that one document fills.
TEST(Fused, AttentionOfDocumentsOneByOne) {
  const std::int64_t length = 300;
  auto tokens = at::zeros({2, length}, at::kLong);
  for (const auto end : {3, 140, 141, 200, 279}) tokens[0][end] = 3;
  for (const std::int64_t kv_heads : {2, 6}) {
    auto s = attention_shape(kv_heads, length);
    s.begins_BT = document_begins(tokens, 3);
    expect_same_attention(s);
  }
}

/// Documents with more weights than memory allows, alone and after a short one.
TEST(Fused, AttentionOfLargeDocuments) {
  const std::int64_t length = 3500;
  auto tokens = at::zeros({1, length}, at::kLong);
  for (const auto end : {99, 3450}) tokens[0][end] = 3;
  for (const bool has_short : {false, true}) {
    if (!has_short) tokens[0][99] = 0;
    auto s = attention_shape(2, length);
    s.sequences = 1;
    s.cos_TD2 = s.sin_TD2 = at::Tensor();
    s.begins_BT = document_begins(tokens, 3);
    expect_same_attention(s);
    tokens[0][99] = 3;
  }
}

TEST(Fused, AttentionOfDocumentsInBf16) {
  const std::int64_t length = 300;
  auto tokens = at::zeros({2, length}, at::kLong);
  for (const auto end : {140, 200}) tokens[0][end] = 3;
  auto s = attention_shape(2, length);
  s.begins_BT = document_begins(tokens, 3);
  const auto qkv = random({2 * length, 10 * 10}, 1), norms = random({20}, 2);
  const auto y = fused::attention(s, qkv.to(at::kBFloat16), norms.to(at::kBFloat16));
  EXPECT_LT(relative_error(y.to(at::kFloat), plain::attention(s, qkv, norms)), 2e-2);
}

TEST(DocumentSpans, JoinShortDocumentsAndCoverTheSequence) {
  const auto spans_of = [](std::vector<std::int32_t> ends, std::int32_t length) {
    std::vector<std::int32_t> begins;
    std::int32_t begin = 0;
    for (std::int32_t t = 0; t < length; ++t) {
      if (std::ranges::find(ends, t - 1) != ends.end()) begin = t;
      begins.push_back(begin);
    }
    return document_spans(begins);
  };
  using Spans = std::vector<DocumentSpan>;
  EXPECT_EQ(spans_of({}, 1000), Spans({{0, 1000}}));
  EXPECT_EQ(spans_of({127}, 1000), Spans({{0, 128}, {128, 872}}));
  EXPECT_EQ(spans_of({126}, 1000), Spans({{0, 1000}})) << "127 tokens are joined with what follows";
  EXPECT_EQ(spans_of({49, 99, 149, 899}, 1000), Spans({{0, 150}, {150, 750}, {900, 100}}));
  EXPECT_EQ(spans_of({0}, 1), Spans({{0, 1}}));
}

TEST(Fused, Embed) {
  const auto weight = leaf({9, 5}, 1);
  const auto ids = at::tensor({3, 3, 8, 0, 3}, at::kLong);
  expect_same_gradients(fused::embed(weight, ids), plain::embed(weight, ids), {weight});
}

TEST(Fused, HeadLossInOnePartAndInSeveral) {
  // head_loss computes 2^22 logits at a time: 300 rows of 30,011 ids take three parts.
  for (const std::int64_t vocab : {131, 30011}) {
    const auto h = leaf({300, 8}, 1), weight = leaf({vocab, 8}, 2);
    auto targets = at::arange(300, at::kLong) * 97 % vocab;
    const auto fused = fused::head_loss(h, weight, targets);
    const auto plain = at::cross_entropy_loss(at::linear(h, weight), targets);
    EXPECT_NEAR(fused.item<float>(), plain.item<float>(), 1e-5);
    const auto actual = torch::autograd::grad({fused}, {h, weight});
    const auto expected = torch::autograd::grad({plain}, {h, weight});
    for (int i = 0; i < 2; ++i) EXPECT_LT(relative_error(actual[i], expected[i]), 1e-5);
  }
}

TEST(Plain, SoftmaxLossIsTheLossAndItsGradient) {
  const auto h = leaf({40, 8}, 1), weight = leaf({31, 8}, 2);
  const auto targets = at::arange(40, at::kLong) % 31;
  const auto logits = at::linear(h, weight);
  const auto mean = at::cross_entropy_loss(logits, targets);
  const auto expected = torch::autograd::grad({mean}, {logits})[0];
  const auto in_place = logits.detach().clone();
  const auto sum = plain::softmax_loss(in_place, targets, 1.0 / 40);
  EXPECT_NEAR(sum.item<double>() / 40, mean.item<float>(), 1e-6);
  EXPECT_LT(relative_error(in_place, expected), 1e-6);
}

TEST(Fused, ZLossIsOfTheSquaredLogarithmOfTheDenominator) {
  const auto h = leaf({300, 8}, 1), weight = leaf({131, 8}, 2);
  const auto targets = at::arange(300, at::kLong) * 97 % 131;
  const auto fused = fused::head_loss(h, weight, targets, {.loss = 0.25, .z_loss = 0.1});
  const auto logits = at::linear(h, weight);
  const auto mean = at::cross_entropy_loss(logits, targets);
  EXPECT_NEAR(fused.item<float>(), mean.item<float>(), 1e-5)
      << "the reported loss must not include the z-loss";
  const auto minimised = 0.25 * (mean + 0.1 * logits.logsumexp(1).square().mean());
  const auto actual = torch::autograd::grad({fused}, {h, weight});
  const auto expected = torch::autograd::grad({minimised}, {h, weight}, {}, true);
  for (int i = 0; i < 2; ++i) EXPECT_LT(relative_error(actual[i], expected[i]), 1e-5);

  const auto without = torch::autograd::grad({0.25 * mean}, {h, weight});
  EXPECT_GT(relative_error(without[0], expected[0]), 0.1) << "the z-loss must be large enough for the test";
  const auto in_place = logits.detach().clone();
  static_cast<void>(plain::softmax_loss(in_place, targets, 0.25 / 300, 0.1));
  EXPECT_LT(relative_error(at::mm(in_place, weight), expected[0]), 1e-5);
}

TEST(Fused, LossOfCertainLogitsIsExact) {
  const at::NoGradGuard no_grad;
  const auto h = at::ones({1, 1});
  const auto weight = at::tensor({1000.0F, 0.0F, -1000.0F}).view({3, 1});
  EXPECT_EQ(fused::head_loss(h, weight, at::tensor({0}, at::kLong)).item<float>(), 0);
  EXPECT_EQ(fused::head_loss(h, weight, at::tensor({2}, at::kLong)).item<float>(), 2000);
}

}  // namespace
}  // namespace isthmus::trainer
