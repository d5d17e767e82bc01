#include "ops/ops.h"

#include <ATen/ATen.h>

namespace isthmus::trainer {

using at::Tensor;

Tensor document_begins(const Tensor& tokens_BT, std::int64_t separator) {
  const auto length = tokens_BT.size(1);
  const auto next = at::arange(1, length, tokens_BT.options());
  const auto behind = at::where(tokens_BT.narrow(1, 0, length - 1).eq(separator), next, 0);
  const auto begins = std::get<0>(at::cummax(behind, 1));
  return at::constant_pad_nd(begins, {1, 0}).to(at::kInt).contiguous();
}

namespace plain {
namespace {

Tensor scaled_norm(const Tensor& x, const Tensor& weight, double eps) {
  return at::rms_norm(x, {weight.size(0)}, weight, eps);
}

/// x [B,T,heads,D] -> rotated, [B,heads,T,D].
Tensor rotate(const AttentionShape& s, const Tensor& x_BTHD) {
  if (!s.cos_TD2.defined()) return x_BTHD.transpose(1, 2);
  const auto table = [&](const Tensor& full) {
    return full.narrow(0, 0, s.length).view({1, s.length, 1, s.head_dim / 2});
  };
  const auto cos = table(s.cos_TD2);
  const auto sin = table(s.sin_TD2);
  const auto halves = x_BTHD.to(at::kFloat).chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1)
      .to(x_BTHD.scalar_type())
      .transpose(1, 2);
}

}  // namespace

Tensor embed(const Tensor& weight_VC, const Tensor& tokens_N) { return at::embedding(weight_VC, tokens_N); }

std::pair<Tensor, Tensor> add_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& weight_C,
                                   double eps) {
  const auto sum_NC = delta_NC.defined() ? x_NC + delta_NC : x_NC;
  return {sum_NC, scaled_norm(sum_NC, weight_C, eps)};
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& affine_2C,
                                         double eps) {
  const auto sum_NC = x_NC + delta_NC;
  const auto halves = affine_2C.chunk(2);
  return {sum_NC, at::layer_norm(sum_NC, {sum_NC.size(1)}, halves[0], halves[1], eps)};
}

Tensor attend(const AttentionShape& s, const Tensor& q_BHTD, const Tensor& k_BKTD, const Tensor& v_BKTD) {
  std::optional<Tensor> mask_B1TT;
  if (s.begins_BT.defined()) {
    const auto positions = at::arange(s.length, s.begins_BT.options());
    mask_B1TT = positions.ge(s.begins_BT.unsqueeze(-1)).logical_and(positions.le(positions.unsqueeze(-1)));
    mask_B1TT = mask_B1TT->unsqueeze(1);
  }
  const auto y_BHTD = at::scaled_dot_product_attention(q_BHTD, k_BKTD, v_BKTD, mask_B1TT, 0.0,
                                                       /*is_causal=*/!mask_B1TT, {},
                                                       /*enable_gqa=*/s.heads != s.kv_heads);
  return y_BHTD.transpose(1, 2).reshape({s.sequences * s.length, s.heads * s.head_dim});
}

Tensor attention(const AttentionShape& s, const Tensor& qkv_NE, const Tensor& norms_2D) {
  const auto parts = qkv_NE.view({s.sequences, s.length, -1, s.head_dim})
                         .split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 2);
  const auto normed = [&](int part) {
    if (norms_2D.numel() == 0) return parts[part];
    return scaled_norm(parts[part], norms_2D.narrow(0, part * s.head_dim, s.head_dim), s.norm_eps);
  };
  return attend(s, rotate(s, normed(0)), rotate(s, normed(1)), parts[2].transpose(1, 2));
}

Tensor product(const Tensor& x_NI, const Product& by) {
  return by.input_first ? at::addmm(by.bias, x_NI, by.weight) : at::linear(x_NI, by.weight);
}

Tensor swiglu_product(const Tensor& gate_up_N2F, const Product& by) {
  const auto halves = gate_up_N2F.chunk(2, -1);
  return product(at::silu(halves[0]) * halves[1], by);
}

Tensor gelu_product(const Tensor& x_NF, const Product& by) { return product(at::gelu(x_NF, "tanh"), by); }

Tensor softmax_loss(const Tensor& logits_NV, const Tensor& targets_N, double scale, double z_loss) {
  const auto wide_NV = logits_NV.to(at::kFloat);
  const auto targets_N1 = targets_N.unsqueeze(1);
  const auto log_sums_N1 = wide_NV.logsumexp(1, true);
  auto loss = (log_sums_N1 - wide_NV.gather(1, targets_N1)).sum(at::kDouble);
  // Compares with all ids instead of scattering a -1, which is repeatable to the bit on a GPU too.
  const auto one_hot_NV = at::arange(logits_NV.size(1), targets_N.options()).eq(targets_N1);
  auto weights_NV = (wide_NV - log_sums_N1).exp();
  if (z_loss != 0) weights_NV *= 1 + 2 * z_loss * log_sums_N1;
  logits_NV.copy_((weights_NV - one_hot_NV.to(at::kFloat)) * scale);
  return loss;
}

}  // namespace plain

const Ops& ops_on(const Tensor& x) {
  static constexpr Ops on_gpu = {plain::embed,         fused::add_norm, fused::add_layer_norm,
                                 fused::gpu_attention, fused::product,  fused::swiglu_product,
                                 fused::gelu_product};
  static constexpr Ops on_cpu = {fused::embed,       fused::add_norm, fused::add_layer_norm,
                                 fused::attention,   fused::product,  fused::swiglu_product,
                                 fused::gelu_product};
  return x.is_cpu() ? on_cpu : on_gpu;
}

}  // namespace isthmus::trainer
