#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>
#include <tuple>

#include "kernels/cpu_kernels.h"
#include "ops/device_loops.h"
#include "ops/document_spans.h"
#include "ops/ops.h"

namespace isthmus::trainer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace fused {
namespace {

/// Null for an empty tensor, which means no norms.
template <class T>
T* norms(const Tensor& x) {
  return x.numel() > 0 ? data<T>(x) : nullptr;
}

Tensor float_like(const Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(at::kFloat));
}

struct Embed : Function<Embed> {
  static Tensor forward(AutogradContext* ctx, const Tensor& weight_VC, const Tensor& tokens_N) {
    ctx->save_for_backward({tokens_N, weight_VC});
    return at::embedding(weight_VC, tokens_N);
  }
  /// Adds in fp32: an id may occur hundreds of times in a batch, which bf16 sums would lose.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &tokens_N = saved[0], &weight_VC = saved[1];
    if (auto& so_far = weight_VC.mutable_grad(); so_far.defined() && so_far.scalar_type() == at::kFloat) {
      so_far.index_add_(0, tokens_N, grads[0]);
      return {Tensor(), Tensor()};
    }
    const auto sums_VC =
        at::embedding_dense_backward(grads[0].to(at::kFloat), tokens_N, weight_VC.size(0), -1, false);
    return {sums_VC.to(grads[0].scalar_type()), Tensor()};
  }
};

template <class T>
void add_norm_forward(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps,
                      const Tensor& sum, const Tensor& out, const Tensor& rstd) {
  run_on(x, cpu::AddNorm<T>{x.size(0), x.size(1), static_cast<float>(eps), data<T>(x), data<T>(delta),
                            data<T>(weight), data<T>(sum), data<T>(out), floats(rstd)});
}

/// RMSNorm without an addition.
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

/// Memory in which a GPU adds up a norm's gradients of `width` weights; undefined on a CPU.
Tensor block_sums(const Tensor& x, std::int64_t width) {
  return x.is_cpu() ? Tensor() : float_like(x, {cuda::row_blocks(x.size(0)), width});
}

/// Both gradients of a norm from the saved tensors; grad_sum may be undefined.
std::pair<Tensor, Tensor> norm_backward(const variable_list& saved, const Tensor& grad_out,
                                        const Tensor& grad_sum) {
  const auto& sum = saved[0];
  const auto& weight = saved[1];
  const auto out_grad = grad_out.contiguous();
  const auto sum_grad = grad_sum.defined() ? grad_sum.contiguous() : grad_sum;
  const auto grad_x = at::empty_like(sum);
  const auto weight_grad = float_like(sum, {sum.size(1)});
  const auto sums = block_sums(sum, sum.size(1));
  dispatch(sum, [&](auto type) {
    using T = decltype(type);
    run_on(sum, cpu::AddNormBackward<T>{sum.size(0), sum.size(1), data<T>(sum), data<T>(weight),
                                        data<T>(out_grad), data<T>(sum_grad), floats(saved[2]),
                                        data<T>(grad_x), floats(weight_grad), floats(sums)});
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
      run_on(x, cpu::AddLayerNorm<T>{x.size(0), x.size(1), static_cast<float>(eps), data<T>(x),
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
    const auto sums = block_sums(sum, affine.numel());
    dispatch(sum, [&](auto type) {
      using T = decltype(type);
      run_on(sum, cpu::AddLayerNormBackward<T>{sum.size(0), sum.size(1), data<T>(sum), data<T>(affine),
                                               data<T>(out_grad), data<T>(sum_grad), floats(saved[2]),
                                               floats(saved[3]), data<T>(grad_x), floats(affine_grad),
                                               floats(sums)});
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

void keep_shape(AutogradContext* ctx, const AttentionShape& s) {
  ctx->saved_data["shape"] =
      std::vector<std::int64_t>{s.sequences, s.length, s.heads, s.kv_heads, s.head_dim};
  ctx->saved_data["eps"] = s.norm_eps;
}
AttentionShape kept_shape(AutogradContext* ctx, const Tensor& cos, const Tensor& sin, const Tensor& begins) {
  const auto n = ctx->saved_data["shape"].toIntVector();
  return {n[0], n[1], n[2], n[3], n[4], ctx->saved_data["eps"].toDouble(), cos, sin, begins};
}

/// Whether documents are computed one by one. A shorter sequence would be one part anyway.
bool by_documents(const AttentionShape& s) { return s.begins_BT.defined() && s.length > min_span; }
/// Whether the weights of all heads would take too much memory.
bool is_large(const AttentionShape& s) {
  constexpr std::int64_t max_weights = 1 << 26;
  return s.sequences * s.heads * s.length * s.length > max_weights;
}

struct Attention : Function<Attention> {
  /// Query heads that share keys are adjacent, so a group's scores are one product: [B K, (H/K) T, D] x [B K,
  /// D, T].
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
      cpu::run(cpu::SplitHeads<T>{heads_of(s), data<T>(qkv), norms<T>(norms_2D), data<T>(q), data<T>(k),
                                  data<T>(v), floats(rstd)});
    });
    const auto kept_qkv =
        norms_2D.numel() > 0 ? qkv : Tensor();  // a norm's backward pass needs the norm's input
    Tensor y_BHTD, kept_weights, flash_y, log_sums;
    if (by_documents(s)) {
      y_BHTD = attend_documents(s, {q, k, v});
    } else if (by_flash(s, q)) {
      std::tie(flash_y, log_sums) = at::_scaled_dot_product_flash_attention_for_cpu(
          by_heads(s, q), by_heads(s, k), by_heads(s, v), 0.0, /*is_causal=*/true);
      y_BHTD = flash_y;
    } else {
      const auto weights = weights_of(s, q, k);
      if (s.length <= 4 * s.head_dim) kept_weights = weights;
      y_BHTD = by_heads(s, at::bmm(weights, v));
    }
    ctx->save_for_backward({kept_qkv, norms_2D, rstd, q, k, v, kept_weights, flash_y, log_sums, s.cos_TD2,
                            s.sin_TD2, s.begins_BT});
    keep_shape(ctx, s);
    return y_BHTD.transpose(1, 2).reshape({s.sequences * s.length, s.heads * s.head_dim});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &qkv = saved[0], &norms_2D = saved[1], &rstd = saved[2];
    const auto &q = saved[3], &k = saved[4], &v = saved[5];
    const auto s = kept_shape(ctx, saved[9], saved[10], saved[11]);
    const auto grad_y_BHTD = grads[0].reshape({s.sequences, s.length, s.heads, s.head_dim}).transpose(1, 2);
    const auto [grad_q, grad_k, grad_v] =
        by_documents(s)  ? backward_of_documents(s, grad_y_BHTD, {q, k, v})
        : by_flash(s, q) ? flash_backward(s, grad_y_BHTD, {q, k, v, saved[7], saved[8]})
                         : backward_of_weights(s, grad_y_BHTD.reshape(q.sizes()), {q, k, v, saved[6]});
    const auto rows = s.sequences * s.length, width = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const auto grad_qkv = at::empty({rows, width}, q.options());
    const auto norms_grad = float_like(q, norms_2D.sizes());
    dispatch(q, [&, &grad_q = grad_q, &grad_k = grad_k, &grad_v = grad_v](auto type) {
      using T = decltype(type);
      cpu::run(cpu::SplitHeadsBackward<T>{heads_of(s), data<T>(qkv), norms<T>(norms_2D), floats(rstd),
                                          data<T>(grad_q), data<T>(grad_k), data<T>(grad_v),
                                          data<T>(grad_qkv), norms<float>(norms_grad)});
    });
    return {grad_qkv, norms_grad.to(q.scalar_type()), Tensor()};
  }

 private:
  using Three = std::tuple<Tensor, Tensor, Tensor>;
  /// Whether ATen's flash attention is faster than the products of all weights: in fp32, for long sequences.
  static bool by_flash(const AttentionShape& s, const Tensor& q) {
    return q.scalar_type() == at::kFloat && s.length >= 256 && s.heads == s.kv_heads &&
           !s.begins_BT.defined();
  }
  /// Calls `body` with the shape of each part of each sequence, and with a function that cuts the part out of
  /// a tensor of all heads, as [K, H / K, part, D].
  template <class Body>
  static void for_each_part(const AttentionShape& s, const Body& body) {
    const auto begins = s.begins_BT.contiguous();
    for (std::int64_t b = 0; b < s.sequences; ++b) {
      const auto row = begins[b];
      const auto length = static_cast<std::size_t>(s.length);
      for (const auto& span : document_spans({row.const_data_ptr<std::int32_t>(), length})) {
        auto part = s;
        part.sequences = 1;
        part.length = span.size;
        part.begins_BT = (row.narrow(0, span.begin, span.size) - span.begin).unsqueeze(0);
        body(part, [&, b](const Tensor& x) {
          const auto sequence = x.view({s.sequences, s.kv_heads, -1, s.length, s.head_dim})[b];
          return sequence.narrow(2, span.begin, span.size);
        });
      }
    }
  }
  static Tensor flattened(const Tensor& x_KGtD) { return x_KGtD.flatten(1, 2); }
  /// [1, heads, part, D]
  static Tensor by_head(const Tensor& x_KGtD) { return x_KGtD.flatten(0, 1).unsqueeze(0); }
  /// Without a bound, ATen's attention is its flash kernel.
  static Tensor attend_large(AttentionShape part, const Tensor& q, const Tensor& k, const Tensor& v) {
    if (!part.begins_BT.any().item<bool>()) part.begins_BT = Tensor();
    return plain::attend(part, q, k, v);
  }
  static Tensor attend_documents(const AttentionShape& s, const std::array<Tensor, 3>& qkv) {
    const auto& [q, k, v] = qkv;
    const auto y = at::empty_like(q);
    for_each_part(s, [&, &q = q, &k = k, &v = v](const AttentionShape& part, const auto& cut) {
      const auto out = cut(y);
      if (is_large(part)) {
        const auto y_tKGD = attend_large(part, by_head(cut(q)), by_head(cut(k)), by_head(cut(v)))
                                .view({part.length, s.kv_heads, -1, s.head_dim});
        out.copy_(y_tKGD.permute({1, 2, 0, 3}));
        return;
      }
      const auto weights = weights_of(part, flattened(cut(q)), flattened(cut(k)));
      out.copy_(at::bmm(weights, flattened(cut(v))).view(out.sizes()));
    });
    return by_heads(s, y);
  }
  /// Recomputes the part and differentiates it.
  static Three backward_of_large(const AttentionShape& part, const Tensor& grad_y_KGtD,
                                 const std::array<Tensor, 3>& parts_KGtD) {
    const at::AutoGradMode with_graph(true);
    variable_list leaves;
    for (const auto& x : parts_KGtD) leaves.push_back(by_head(x).detach().requires_grad_());
    const auto y = attend_large(part, leaves[0], leaves[1], leaves[2]);
    const auto grads =
        torch::autograd::grad({y}, leaves, {grad_y_KGtD.permute({2, 0, 1, 3}).reshape(y.sizes())});
    return {grads[0], grads[1], grads[2]};
  }
  static Three backward_of_documents(const AttentionShape& s, const Tensor& grad_y_BHTD,
                                     const std::array<Tensor, 3>& qkv) {
    const auto& [q, k, v] = qkv;
    const auto grad_y = grad_y_BHTD.contiguous();
    const auto grad_q = at::empty_like(q), grad_k = at::empty_like(k), grad_v = at::empty_like(v);
    for_each_part(s, [&, &q = q, &k = k, &v = v](const AttentionShape& part, const auto& cut) {
      const auto put = [](const Tensor& to, const Tensor& from) { to.copy_(from.view(to.sizes())); };
      const auto [part_q, part_k, part_v] =
          is_large(part) ? backward_of_large(part, cut(grad_y), {cut(q), cut(k), cut(v)})
                         : backward_of_weights(part, flattened(cut(grad_y)),
                                               {flattened(cut(q)), flattened(cut(k)), flattened(cut(v)), {}});
      put(cut(grad_q), part_q);
      put(cut(grad_k), part_k);
      put(cut(grad_v), part_v);
    });
    return {grad_q, grad_k, grad_v};
  }
  static Tensor by_heads(const AttentionShape& s, const Tensor& x) {
    return x.view({s.sequences, -1, s.length, s.head_dim});
  }
  static Three flash_backward(const AttentionShape& s, const Tensor& grad_y_BHTD,
                              const std::array<Tensor, 5>& kept) {
    const auto& [q, k, v, y, log_sums] = kept;
    const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_y_BHTD, by_heads(s, q), by_heads(s, k), by_heads(s, v), y, log_sums, 0.0, /*is_causal=*/true);
    return {grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()};
  }
  static Three backward_of_weights(const AttentionShape& s, const Tensor& grad_y,
                                   const std::array<Tensor, 4>& kept) {
    const auto& [q, k, v, kept_weights] = kept;
    const auto weights = kept_weights.defined() ? kept_weights : weights_of(s, q, k);
    const auto grad_v = at::bmm(weights.transpose(1, 2), grad_y);
    const auto grad_scores = at::bmm(grad_y, v.transpose(1, 2));
    dispatch(q, [&, &weights = weights](auto type) {
      using T = decltype(type);
      cpu::run(cpu::CausalSoftmaxBackward<T>{weights.size(0) * weights.size(1), s.length, scale(s),
                                             look_back(s), data<T>(weights), data<T>(grad_scores)});
    });
    return {at::bmm(grad_scores, k), at::bmm(grad_scores.transpose(1, 2), q), grad_v};
  }
  static Tensor weights_of(const AttentionShape& s, const Tensor& q, const Tensor& k) {
    auto weights = at::bmm(q, k.transpose(1, 2));
    dispatch(q, [&](auto type) {
      using T = decltype(type);
      cpu::run(cpu::CausalSoftmax<T>{weights.size(0) * weights.size(1), s.length, scale(s), look_back(s),
                                     data<T>(weights)});
    });
    return weights;
  }
  static float scale(const AttentionShape& s) { return 1.0F / std::sqrt(static_cast<float>(s.head_dim)); }
};

/// q_BHTD, k_BKTD and v_BKTD from qkv_NE, on a GPU.
struct RotatedHeads : Function<RotatedHeads> {
  static variable_list forward(AutogradContext* ctx, const Tensor& qkv_NE, const Tensor& norms_2D,
                               const AttentionShape& s) {
    const auto qkv = qkv_NE.contiguous();
    const auto out = at::empty_like(qkv);
    dispatch(qkv, [&](auto type) {
      using T = decltype(type);
      run_on_gpu(qkv, cuda::RotateHeads<T>{heads_of(s), data<T>(qkv), norms<T>(norms_2D), data<T>(out)});
    });
    const auto kept_qkv = norms_2D.numel() > 0 ? qkv : Tensor();
    ctx->save_for_backward({kept_qkv, norms_2D, s.cos_TD2, s.sin_TD2});
    keep_shape(ctx, s);
    const auto heads = out.view({s.sequences, s.length, -1, s.head_dim});
    const auto part = [&](std::int64_t begin, std::int64_t count) {
      return heads.narrow(2, begin, count).transpose(1, 2);
    };
    return {part(0, s.heads), part(s.heads, s.kv_heads), part(s.heads + s.kv_heads, s.kv_heads)};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &qkv = saved[0], &norms_2D = saved[1];
    const auto s = kept_shape(ctx, saved[2], saved[3], {});
    const auto by_token = [](const Tensor& grad_BHTD) { return grad_BHTD.transpose(1, 2).contiguous(); };
    const auto q = by_token(grads[0]), k = by_token(grads[1]), v = by_token(grads[2]);
    const auto rows = s.sequences * s.length;
    const auto grad_qkv = at::empty({rows, (s.heads + 2 * s.kv_heads) * s.head_dim}, q.options());
    const auto norms_grad = float_like(q, norms_2D.sizes());
    const auto sums = float_like(q, {norms_2D.numel() > 0 ? cuda::row_blocks(rows) : 0, norms_2D.numel()});
    dispatch(q, [&](auto type) {
      using T = decltype(type);
      run_on_gpu(q, cuda::RotateHeadsBackward<T>{heads_of(s), data<T>(qkv), norms<T>(norms_2D), data<T>(q),
                                                 data<T>(k), data<T>(v), data<T>(grad_qkv),
                                                 floats(norms_grad), floats(sums)});
    });
    return {grad_qkv, norms_grad.to(q.scalar_type()), Tensor()};
  }
};

}  // namespace

Tensor embed(const Tensor& weight_VC, const Tensor& tokens_N) { return Embed::apply(weight_VC, tokens_N); }

namespace {
bool is_too_wide(const Tensor& x_NC) { return !x_NC.is_cpu() && x_NC.size(1) > cuda::max_channels; }
}  // namespace

std::pair<Tensor, Tensor> add_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& weight_C,
                                   double eps) {
  if (is_too_wide(x_NC)) return plain::add_norm(x_NC, delta_NC, weight_C, eps);
  if (!delta_NC.defined()) return {x_NC, Norm::apply(x_NC, weight_C, eps)};
  auto both = AddNorm::apply(x_NC, delta_NC, weight_C, eps);
  return {both[0], both[1]};
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x_NC, const Tensor& delta_NC, const Tensor& affine_2C,
                                         double eps) {
  if (is_too_wide(x_NC)) return plain::add_layer_norm(x_NC, delta_NC, affine_2C, eps);
  auto both = AddLayerNorm::apply(x_NC, delta_NC, affine_2C, eps);
  return {both[0], both[1]};
}

Tensor gpu_attention(const AttentionShape& s, const Tensor& qkv_NE, const Tensor& norms_2D) {
  // Heads without norm and rotation are views of qkv.
  const bool is_plain = !s.cos_TD2.defined() && norms_2D.numel() == 0;
  if (is_plain || !cuda::rotates(heads_of(s))) return plain::attention(s, qkv_NE, norms_2D);
  const auto heads = RotatedHeads::apply(qkv_NE, norms_2D, s);
  return plain::attend(s, heads[0], heads[1], heads[2]);
}

Tensor attention(const AttentionShape& s, const Tensor& qkv_NE, const Tensor& norms_2D) {
  if (!by_documents(s) && is_large(s)) return plain::attention(s, qkv_NE, norms_2D);
  return Attention::apply(qkv_NE, norms_2D, s);
}

}  // namespace fused

}  // namespace isthmus::trainer
