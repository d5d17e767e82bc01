#include "ops.h"

#include <torch/torch.h>

#include <cmath>

#include "cpu_kernels.h"

namespace isthmus::trainer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor document_begins(const Tensor& tokens_BT, std::int64_t separator) {
  const auto length = tokens_BT.size(1);
  const auto next = at::arange(1, length, tokens_BT.options());
  const auto behind = at::where(tokens_BT.narrow(1, 0, length - 1).eq(separator), next, 0);
  const auto begins = std::get<0>(at::cummax(behind, 1));
  return at::constant_pad_nd(begins, {1, 0}).to(at::kInt).contiguous();
}

namespace plain {
namespace {

Tensor norm(const Tensor& x, const Tensor& weight, double eps) {
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
  return {sum_NC, norm(sum_NC, weight_C, eps)};
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& affine_2C,
                                         double eps) {
  const auto sum_NC = x_NC + delta_NC;
  const auto halves = affine_2C.chunk(2);
  return {sum_NC, at::layer_norm(sum_NC, {sum_NC.size(1)}, halves[0], halves[1], eps)};
}

Tensor attention(const AttentionShape& s, const Tensor& qkv_NE, const Tensor& norms_2D) {
  const auto parts = qkv_NE.view({s.sequences, s.length, -1, s.head_dim})
                         .split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 2);
  const auto normed = [&](int part) {
    if (norms_2D.numel() == 0) return parts[part];
    return norm(parts[part], norms_2D.narrow(0, part * s.head_dim, s.head_dim), s.norm_eps);
  };
  std::optional<Tensor> mask_B1TT;
  if (s.begins_BT.defined()) {
    const auto positions = at::arange(s.length, s.begins_BT.options());
    mask_B1TT = positions.ge(s.begins_BT.unsqueeze(-1)).logical_and(positions.le(positions.unsqueeze(-1)));
    mask_B1TT = mask_B1TT->unsqueeze(1);
  }
  const auto y_BHTD = at::scaled_dot_product_attention(
      rotate(s, normed(0)), rotate(s, normed(1)), parts[2].transpose(1, 2), mask_B1TT, 0.0,
      /*is_causal=*/!mask_B1TT, {}, /*enable_gqa=*/s.heads != s.kv_heads);
  return y_BHTD.transpose(1, 2).reshape({s.sequences * s.length, s.heads * s.head_dim});
}

Tensor swiglu(const Tensor& gate_up_N2F) {
  const auto halves = gate_up_N2F.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

Tensor gelu(const Tensor& x_NF) { return at::gelu(x_NF, "tanh"); }

Tensor softmax_loss(const Tensor& logits_NV, const Tensor& targets_N, double scale, double z_loss) {
  const auto wide_NV = logits_NV.to(at::kFloat);
  const auto targets_N1 = targets_N.unsqueeze(1);
  const auto log_sums_N1 = wide_NV.logsumexp(1, true);
  auto loss = (log_sums_N1 - wide_NV.gather(1, targets_N1)).sum(at::kDouble);
  // A comparison with all ids in place of a scattered -1: it repeats to the bit on a GPU too.
  const auto one_hot_NV = at::arange(logits_NV.size(1), targets_N.options()).eq(targets_N1);
  auto weights_NV = (wide_NV - log_sums_N1).exp();
  if (z_loss != 0) weights_NV *= 1 + 2 * z_loss * log_sums_N1;
  logits_NV.copy_((weights_NV - one_hot_NV.to(at::kFloat)) * scale);
  return loss;
}

}  // namespace plain

namespace fused {
namespace {

/// f(T{}) with the storage type of x: float or Bf16.
template <class F>
auto dispatch(const Tensor& x, const F& f) {
  if (x.scalar_type() == at::kBFloat16) return f(Bf16{});
  TORCH_CHECK(x.scalar_type() == at::kFloat, "the CPU loops know fp32 and bf16");
  return f(float{});
}

template <class T>
T* data(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}
/// Null for an empty tensor: no norms.
template <class T>
T* norms(const Tensor& x) {
  return x.numel() > 0 ? data<T>(x) : nullptr;
}
float* floats(const Tensor& x) { return data<float>(x); }

Tensor float_like(const Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(at::kFloat));
}

struct Embed : Function<Embed> {
  static Tensor forward(AutogradContext* ctx, const Tensor& weight_VC, const Tensor& tokens_N) {
    ctx->save_for_backward({tokens_N});
    ctx->saved_data["vocab"] = weight_VC.size(0);
    return at::embedding(weight_VC, tokens_N);
  }
  /// Summed in fp32: an id may stand hundreds of times in a batch, which bf16 sums would lose.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto tokens_N = ctx->get_saved_variables()[0];
    const auto sums_VC = at::embedding_dense_backward(grads[0].to(at::kFloat), tokens_N,
                                                      ctx->saved_data["vocab"].toInt(), -1, false);
    return {sums_VC.to(grads[0].scalar_type()), Tensor()};
  }
};

template <class T>
void add_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps,
                      const Tensor& sum, const Tensor& out, const Tensor& rstd) {
  cpu::add_norm(cpu::AddNorm<T>{x.size(0), x.size(1), static_cast<float>(eps), data<T>(x), data<T>(delta),
                                data<T>(weight), data<T>(sum), data<T>(out), floats(rstd)});
}

/// RMSNorm alone.
struct Norm : Function<Norm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_NC, const Tensor& weight_C, double eps) {
    const auto x = x_NC.contiguous();
    auto out = at::empty_like(x);
    const auto rstd_N = float_like(x, {x.size(0)});
    dispatch(x, [&](auto type) { add_norm_forward<decltype(type)>(x, {}, weight_C, eps, {}, out, rstd_N); });
    ctx->save_for_backward({x, weight_C, rstd_N});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

/// Both gradients of a norm from what was saved; grad_sum may be undefined.
std::pair<Tensor, Tensor> norm_backward(const variable_list& saved, const Tensor& grad_out,
                                        const Tensor& grad_sum) {
  const auto& sum = saved[0];
  const auto& weight = saved[1];
  const auto out_grad = grad_out.contiguous();
  const auto sum_grad = grad_sum.defined() ? grad_sum.contiguous() : grad_sum;
  const auto grad_x = at::empty_like(sum);
  const auto weight_grad = float_like(sum, {sum.size(1)});
  dispatch(sum, [&](auto type) {
    using T = decltype(type);
    cpu::add_norm_backward(cpu::AddNormBackward<T>{sum.size(0), sum.size(1), data<T>(sum), data<T>(weight),
                                                   data<T>(out_grad), data<T>(sum_grad), floats(saved[2]),
                                                   data<T>(grad_x), floats(weight_grad)});
  });
  return {grad_x, weight_grad.to(sum.scalar_type())};
}

variable_list Norm::backward(AutogradContext* ctx, const variable_list& grads) {
  const auto [grad_x, grad_weight] = norm_backward(ctx->get_saved_variables(), grads[0], {});
  return {grad_x, grad_weight, Tensor()};
}

struct AddNorm : Function<AddNorm> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_NC, const Tensor& delta_NC,
                               const Tensor& weight_C, double eps) {
    const auto x = x_NC.contiguous();
    const auto delta = delta_NC.contiguous();
    const auto sum = at::empty_like(x);
    const auto out = at::empty_like(x);
    const auto rstd_N = float_like(x, {x.size(0)});
    dispatch(x,
             [&](auto type) { add_norm_forward<decltype(type)>(x, delta, weight_C, eps, sum, out, rstd_N); });
    ctx->save_for_backward({sum, weight_C, rstd_N});
    ctx->set_materialize_grads(false);
    return {sum, out};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto [grad_x, grad_weight] = norm_backward(ctx->get_saved_variables(), grads[1], grads[0]);
    return {grad_x, grad_x, grad_weight, Tensor()};
  }
};

struct AddLayerNorm : Function<AddLayerNorm> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x_NC, const Tensor& delta_NC,
                               const Tensor& affine_2C, double eps) {
    const auto x = x_NC.contiguous();
    const auto delta = delta_NC.contiguous();
    const auto sum = at::empty_like(x);
    const auto out = at::empty_like(x);
    const auto mean_N = float_like(x, {x.size(0)}), rstd_N = float_like(x, {x.size(0)});
    dispatch(x, [&](auto type) {
      using T = decltype(type);
      cpu::add_layer_norm(cpu::AddLayerNorm<T>{x.size(0), x.size(1), static_cast<float>(eps), data<T>(x),
                                               data<T>(delta), data<T>(affine_2C), data<T>(sum), data<T>(out),
                                               floats(mean_N), floats(rstd_N)});
    });
    ctx->save_for_backward({sum, affine_2C, mean_N, rstd_N});
    ctx->set_materialize_grads(false);
    return {sum, out};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &sum = saved[0], &affine = saved[1];
    const auto sum_grad = grads[0].defined() ? grads[0].contiguous() : grads[0];
    const auto out_grad = grads[1].contiguous();
    const auto grad_x = at::empty_like(sum);
    const auto affine_grad = float_like(sum, affine.sizes());
    dispatch(sum, [&](auto type) {
      using T = decltype(type);
      cpu::add_layer_norm_backward(cpu::AddLayerNormBackward<T>{
          sum.size(0), sum.size(1), data<T>(sum), data<T>(affine), data<T>(out_grad), data<T>(sum_grad),
          floats(saved[2]), floats(saved[3]), data<T>(grad_x), floats(affine_grad)});
    });
    return {grad_x, grad_x, affine_grad.to(sum.scalar_type()), Tensor()};
  }
};

cpu::LookBack look_back(const AttentionShape& s) {
  return {s.length, s.heads, s.begins_BT.defined() ? data<std::int32_t>(s.begins_BT) : nullptr};
}

cpu::Heads heads_of(const AttentionShape& s) {
  return {s.sequences, s.length,          s.heads,           s.kv_heads,
          s.head_dim,  floats(s.cos_TD2), floats(s.sin_TD2), static_cast<float>(s.norm_eps)};
}

struct Attention : Function<Attention> {
  /// Query heads that share keys lie side by side, so a group's scores are one product: [B K, (H/K) T, D] x
  /// [B K, D, T].
  static Tensor forward(AutogradContext* ctx, const Tensor& qkv_NE, const Tensor& norms_2D,
                        const AttentionShape& s) {
    const auto qkv = qkv_NE.contiguous();
    const auto batch = s.sequences * s.kv_heads;
    const auto group_rows = s.heads / s.kv_heads * s.length;
    const auto q = at::empty({batch, group_rows, s.head_dim}, qkv.options());
    const auto k = at::empty({batch, s.length, s.head_dim}, qkv.options());
    const auto v = at::empty_like(k);
    Tensor rstd;
    if (norms_2D.numel() > 0) rstd = float_like(qkv, {qkv.size(0), s.heads + s.kv_heads});
    dispatch(qkv, [&](auto type) {
      using T = decltype(type);
      cpu::split_heads(cpu::SplitHeads<T>{heads_of(s), data<T>(qkv), norms<T>(norms_2D), data<T>(q),
                                          data<T>(k), data<T>(v), floats(rstd)});
    });
    const auto weights = at::bmm(q, k.transpose(1, 2));
    dispatch(qkv, [&](auto type) {
      using T = decltype(type);
      cpu::causal_softmax(
          cpu::CausalSoftmax<T>{batch * group_rows, s.length, scale(s), look_back(s), data<T>(weights)});
    });
    ctx->save_for_backward({qkv, norms_2D, rstd, q, k, v, weights, s.cos_TD2, s.sin_TD2, s.begins_BT});
    keep_shape(ctx, s);
    return at::bmm(weights, v)
        .view({s.sequences, s.heads, s.length, s.head_dim})
        .transpose(1, 2)
        .reshape({s.sequences * s.length, s.heads * s.head_dim});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &qkv = saved[0], &norms_2D = saved[1], &rstd = saved[2];
    const auto &q = saved[3], &k = saved[4], &v = saved[5], &weights = saved[6];
    const auto s = kept_shape(ctx, saved[7], saved[8], saved[9]);
    const auto grad_y =
        grads[0].reshape({s.sequences, s.length, s.heads, s.head_dim}).transpose(1, 2).reshape(q.sizes());
    const auto grad_v = at::bmm(weights.transpose(1, 2), grad_y);
    const auto grad_scores = at::bmm(grad_y, v.transpose(1, 2));
    dispatch(qkv, [&](auto type) {
      using T = decltype(type);
      cpu::causal_softmax_backward(cpu::CausalSoftmaxBackward<T>{weights.size(0) * weights.size(1), s.length,
                                                                 scale(s), look_back(s), data<T>(weights),
                                                                 data<T>(grad_scores)});
    });
    const auto grad_q = at::bmm(grad_scores, k);
    const auto grad_k = at::bmm(grad_scores.transpose(1, 2), q);
    const auto grad_qkv = at::empty_like(qkv);
    const auto norms_grad = float_like(qkv, norms_2D.sizes());
    dispatch(qkv, [&](auto type) {
      using T = decltype(type);
      cpu::split_heads_backward(cpu::SplitHeadsBackward<T>{
          heads_of(s), data<T>(qkv), norms<T>(norms_2D), floats(rstd), data<T>(grad_q), data<T>(grad_k),
          data<T>(grad_v), data<T>(grad_qkv), norms<float>(norms_grad)});
    });
    return {grad_qkv, norms_grad.to(qkv.scalar_type()), Tensor()};
  }

 private:
  static float scale(const AttentionShape& s) { return 1.0F / std::sqrt(static_cast<float>(s.head_dim)); }
  static void keep_shape(AutogradContext* ctx, const AttentionShape& s) {
    ctx->saved_data["shape"] =
        std::vector<std::int64_t>{s.sequences, s.length, s.heads, s.kv_heads, s.head_dim};
    ctx->saved_data["eps"] = s.norm_eps;
  }
  static AttentionShape kept_shape(AutogradContext* ctx, const Tensor& cos, const Tensor& sin,
                                   const Tensor& begins) {
    const auto n = ctx->saved_data["shape"].toIntVector();
    return {n[0], n[1], n[2], n[3], n[4], ctx->saved_data["eps"].toDouble(), cos, sin, begins};
  }
};

struct Swiglu : Function<Swiglu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_up_N2F) {
    const auto gate_up = gate_up_N2F.contiguous();
    auto out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    dispatch(gate_up, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu(cpu::SwiGlu<T>{out.size(0), out.size(1), data<T>(gate_up), data<T>(out)});
    });
    ctx->save_for_backward({gate_up});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto gate_up = ctx->get_saved_variables()[0];
    const auto grad = grads[0].contiguous();
    const auto grad_gate_up = at::empty_like(gate_up);
    dispatch(gate_up, [&](auto type) {
      using T = decltype(type);
      cpu::swiglu_backward(cpu::SwiGluBackward<T>{grad.size(0), grad.size(1), data<T>(gate_up), data<T>(grad),
                                                  data<T>(grad_gate_up)});
    });
    return {grad_gate_up};
  }
};

struct Gelu : Function<Gelu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_NF) {
    const auto x = x_NF.contiguous();
    auto out = at::empty_like(x);
    dispatch(x, [&](auto type) {
      using T = decltype(type);
      cpu::gelu(cpu::Gelu<T>{x.size(0), x.size(1), data<T>(x), data<T>(out)});
    });
    ctx->save_for_backward({x});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto x = ctx->get_saved_variables()[0];
    const auto grad = grads[0].contiguous();
    const auto grad_x = at::empty_like(x);
    dispatch(x, [&](auto type) {
      using T = decltype(type);
      cpu::gelu_backward(
          cpu::GeluBackward<T>{x.size(0), x.size(1), data<T>(x), data<T>(grad), data<T>(grad_x)});
    });
    return {grad_x};
  }
};

/// The logits are the largest tensor of the model, so they are made for a few rows at a time, and turned into
/// their own gradient at once.
struct HeadLoss : Function<HeadLoss> {
  /// Elements: a core's caches are small, a GPU wants large products.
  static std::int64_t logits_at_once(const Tensor& h) { return h.is_cpu() ? 1 << 22 : 1 << 26; }

  static Tensor forward(AutogradContext* ctx, const Tensor& h_NC, const Tensor& weight_VC,
                        const Tensor& targets_N, const LossWeights& weights, bool with_gradient) {
    const auto h = h_NC.contiguous();
    const auto rows = h.size(0);
    const auto vocab = weight_VC.size(0);
    const auto rows_at_once = std::max<std::int64_t>(1, std::min(rows, logits_at_once(h) / vocab));
    const auto grad_h = with_gradient ? at::empty_like(h) : Tensor();
    Tensor grad_weight;  // several parts are summed in fp32
    auto loss = at::zeros({}, h.options().dtype(at::kDouble));
    for (std::int64_t row = 0; row < rows; row += rows_at_once) {
      const auto n = std::min(rows_at_once, rows - row);
      const auto h_part = h.narrow(0, row, n);
      const auto logits = at::linear(h_part, weight_VC);
      loss += softmax_loss(logits, targets_N.narrow(0, row, n), weights.loss / static_cast<double>(rows),
                           weights.z_loss);
      if (!with_gradient) continue;
      auto grad_part = grad_h.narrow(0, row, n);
      at::mm_out(grad_part, logits, weight_VC);
      const auto weight_part = at::mm(logits.t(), h_part);
      grad_weight = grad_weight.defined() ? grad_weight.add_(weight_part)
                    : n == rows           ? weight_part
                                          : weight_part.to(at::kFloat);
    }
    if (with_gradient) ctx->save_for_backward({grad_h, grad_weight.to(h.scalar_type())});
    return (loss / rows).to(at::kFloat);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    const auto saved = ctx->get_saved_variables();
    return {saved[0], saved[1], Tensor(), Tensor(), Tensor()};
  }

 private:
  static Tensor softmax_loss(const Tensor& logits, const Tensor& targets_N, double scale, double z_loss) {
    if (!logits.is_cpu()) return plain::softmax_loss(logits, targets_N, scale, z_loss);
    const double sum = dispatch(logits, [&](auto type) {
      using T = decltype(type);
      return cpu::softmax_loss(cpu::SoftmaxLoss<T>{logits.size(0), logits.size(1), static_cast<float>(scale),
                                                   static_cast<float>(z_loss), data<T>(logits),
                                                   data<std::int64_t>(targets_N)});
    });
    return at::scalar_tensor(sum, at::kDouble);
  }
};

}  // namespace

Tensor embed(const Tensor& weight_VC, const Tensor& tokens_N) { return Embed::apply(weight_VC, tokens_N); }

std::pair<Tensor, Tensor> add_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& weight_C,
                                   double eps) {
  if (!delta_NC.defined()) return {x_NC, Norm::apply(x_NC, weight_C, eps)};
  auto both = AddNorm::apply(x_NC, delta_NC, weight_C, eps);
  return {both[0], both[1]};
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& affine_2C,
                                         double eps) {
  auto both = AddLayerNorm::apply(x_NC, delta_NC, affine_2C, eps);
  return {both[0], both[1]};
}

Tensor attention(const AttentionShape& s, const Tensor& qkv_NE, const Tensor& norms_2D) {
  constexpr std::int64_t most_weights = 1 << 26;
  if (s.sequences * s.heads * s.length * s.length > most_weights)
    return plain::attention(s, qkv_NE, norms_2D);
  return Attention::apply(qkv_NE, norms_2D, s);
}

Tensor swiglu(const Tensor& gate_up_N2F) { return Swiglu::apply(gate_up_N2F); }

Tensor gelu(const Tensor& x_NF) { return Gelu::apply(x_NF); }

Tensor head_loss(const Tensor& h_NC, const Tensor& weight_VC, const Tensor& targets_N, LossWeights weights) {
  const bool with_gradient =
      at::GradMode::is_enabled() && (h_NC.requires_grad() || weight_VC.requires_grad());
  return HeadLoss::apply(h_NC, weight_VC, targets_N, weights, with_gradient);
}

}  // namespace fused

const Ops& ops_on(const Tensor& x) {
  static constexpr Ops on_any = {plain::embed,     plain::add_norm, plain::add_layer_norm,
                                 plain::attention, plain::swiglu,   plain::gelu};
  static constexpr Ops on_cpu = {fused::embed,     fused::add_norm, fused::add_layer_norm,
                                 fused::attention, fused::swiglu,   fused::gelu};
  return x.is_cpu() ? on_cpu : on_any;
}

}  // namespace isthmus::trainer
