#pragma once
// The element-wise parts of the decoder on a CPU, forward and backward, each in one pass over its operands.
// Arithmetic is fp32 for every storage type T (float or Bf16). Sizes: N tokens, C channels, H heads and K
// heads of keys and values of D elements, F feed-forward channels, V ids; all arrays are row-major and dense.
//
// Results do not depend on the number of threads: work is divided into fixed blocks of rows, and the blocks'
// sums are added in order.

#include <cstdint>
#include <vector>

#include "kernels/simd.h"

namespace isthmus::trainer::cpu {

using Index = std::int64_t;

/// sum_NC = x_NC + delta_NC (x_NC if `delta` is null); out = sum * rstd * weight, rstd = 1 / sqrt(mean(sum^2)
/// + eps) (RMSNorm, arXiv 1910.07467, equation 4). rstd_N is kept for the backward pass.
template <class T>
struct AddNorm {
  Index rows, channels;
  float eps;
  const T *x, *delta, *weight_C;
  T *sum, *out;  ///< `sum` is unused without `delta`
  float* rstd_N;
};

/// Gradient of both x and delta: grad_sum (may be null) plus the gradient through the norm. weight_gradient_C
/// is written in fp32.
template <class T>
struct AddNormBackward {
  Index rows, channels;
  const T *sum, *weight_C, *grad_out, *grad_sum;
  const float* rstd_N;
  T* grad_x;
  float* weight_gradient_C;
  float* block_sums = nullptr;  ///< GPU only: cuda::row_blocks(rows) rows as long as the gradient
};

/// The same with LayerNorm (arXiv 1607.06450): out = (sum - mean) * rstd * weight + bias, rstd = 1 /
/// sqrt(variance + eps). Means and rstds are kept for the backward pass.
template <class T>
struct AddLayerNorm {
  Index rows, channels;
  float eps;
  const T *x, *delta, *affine_2C;  ///< `affine` is the weight, then the bias
  T *sum, *out;
  float *mean_N, *rstd_N;
};

/// Gradients as for AddNorm; the weight's gradient is followed by the bias's.
template <class T>
struct AddLayerNormBackward {
  Index rows, channels;
  const T *sum, *affine_2C, *grad_out, *grad_sum;
  const float *mean_N, *rstd_N;
  T* grad_x;
  float* affine_gradient_2C;
  float* block_sums = nullptr;  ///< as in AddNormBackward
};

/// Geometry of the heads of one attention layer. N = sequences * length.
struct Heads {
  Index sequences, length, heads, kv_heads, head_dim;
  const float *cos, *sin;  ///< [length, D/2]: cosine and sine of position * theta^(-2i/D); null: no rotation
  float eps;
  [[nodiscard]] Index rows() const { return sequences * length; }
  [[nodiscard]] Index all_heads() const { return heads + 2 * kv_heads; }
};

/// Splits qkv_NE, E = (H + 2K) D, into q [B,H,T,D], k and v [B,K,T,D]. q and k are normed per head if there
/// are weights [D], then rotated: (a, b) = the halves of a head, (a cos - b sin, b cos + a sin) (arXiv
/// 2104.09864, in the layout of Hugging Face's Llama). rstd [N, H + K] is kept for the backward pass; null
/// without norm.
template <class T>
struct SplitHeads {
  Heads at;
  const T *qkv, *norms;  ///< `norms` [2, D]: weights for queries, then for keys; null without norms
  T *q, *k, *v;
  float* rstd;
};

template <class T>
struct SplitHeadsBackward {
  Heads at;
  const T *qkv, *norms;  ///< `norms` [2, D]: weights for queries, then for keys; null without norms
  const float* rstd;
  const T *grad_q, *grad_k, *grad_v;
  T* grad_qkv;
  float* norms_gradient;  ///< [2, D]; null without norms
};

/// Where a row of attention weights begins to look back: position t of sequence b sees positions from
/// begins_BT[b][t] on. Rows are ordered by sequence, then head, then position.
struct LookBack {
  Index length, heads;
  const std::int32_t* begins_BT;  ///< 0 <= begins[b][t] <= t; null: from 0 on
  [[nodiscard]] Index begin(Index row) const {
    return begins_BT == nullptr ? 0 : begins_BT[row / (heads * length) * length + row % length];
  }
};

/// In place, row r at position t = r mod length: softmax(scale * scores) over columns begin..t, zeros
/// elsewhere. [rows, length]
template <class T>
struct CausalSoftmax {
  Index rows, length;
  float scale;
  LookBack back;
  T* scores;
};

/// In place: gradient of the weights -> gradient of the scores before `scale`.
template <class T>
struct CausalSoftmaxBackward {
  Index rows, length;
  float scale;
  LookBack back;
  const T* weights;
  T* grad;
};

/// out_NF = silu(gate) * up (arXiv 2002.05202), gate and up the halves of gate_up_N(2F).
template <class T>
struct SwiGlu {
  Index rows, channels;
  const T* gate_up;
  T* out;
};

/// Also recomputes `out`, with the same bits as the forward pass.
template <class T>
struct SwiGluBackward {
  Index rows, channels;
  const T *gate_up, *grad_out;
  T *grad_gate_up, *out;
};

/// out = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): GELU in its tanh form (arXiv 1606.08415), which
/// GPT-2 uses.
template <class T>
struct Gelu {
  Index rows, channels;
  const T* x;
  T* out;
};

/// `grad_x` may be `grad_out`; recomputes `out` like SwiGluBackward.
template <class T>
struct GeluBackward {
  Index rows, channels;
  const T *x, *grad_out;
  T *grad_x, *out;
};

/// Runs a kernel above on all threads. `Work`: AddNorm<float>, AddNorm<Bf16> and so on.
template <class Work>
void run(const Work& work);

/// sums_C[c] = the sum of column c, in fp32. GPU only; on a CPU libtorch's own is as good.
template <class T>
struct ColumnSums {
  Index rows, width;
  const T* x;
  float *sums, *block_sums;  ///< `block_sums`: cuda::row_blocks(rows) rows as long as the sums
};

/// Cross-entropy of logits_NV: returns the sum over rows of log(sum exp(logits)) - logits[target], in nats.
/// Replaces the logits by `scale` times the gradient of that plus z_loss * log(sum exp(logits))^2 (arXiv
/// 2204.02311, section 5): scale * ((1 + 2 z_loss log(sum exp)) softmax - one-hot). Targets are in [0, V).
template <class T>
struct SoftmaxLoss {
  Index rows, vocab;
  float scale, z_loss;
  T* logits;
  const std::int64_t* targets_N;
  Index stride = vocab;  ///< GPU only: distance between rows; elements between rows are set to 0
};
[[nodiscard]] double softmax_loss(const SoftmaxLoss<float>& a);
[[nodiscard]] double softmax_loss(const SoftmaxLoss<Bf16>& a);

}  // namespace isthmus::trainer::cpu
