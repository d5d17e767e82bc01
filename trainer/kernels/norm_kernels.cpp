#include "kernels/rows.h"

namespace isthmus::trainer::cpu {
namespace {

// ---- RMSNorm ----

template <class T>
ISTHMUS_INLINE void rows(const AddNorm<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  const float* weight = widened(a.weight_C, n, scratch.row(0));
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.x + row * n, n, scratch.row(1));
    if (a.delta != nullptr) {
      const float* delta = widened(a.delta + row * n, n, scratch.row(2));
      float* added = room(a.sum + row * n, scratch.row(3));
      for (Index c = 0; c < n; ++c) added[c] = x[c] + delta[c];
      put(added, n, a.sum + row * n);
      x = widened(a.sum + row * n, n, scratch.row(3));  // the rounded sum, as the backward pass will see it
    }
    const float rstd = reciprocal_root(x, n, a.eps);
    a.rstd_N[row] = rstd;
    float* out = room(a.out + row * n, scratch.row(2));
    for (Index c = 0; c < n; ++c) out[c] = x[c] * rstd * weight[c];
    put(out, n, a.out + row * n);
  }
}

template <class T>
ISTHMUS_INLINE void rows(const AddNormBackward<T>& a, Index begin, Index end, Scratch& scratch, float* sums) {
  const Index n = a.channels;
  const float* weight = widened(a.weight_C, n, scratch.row(0));
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.sum + row * n, n, scratch.row(1));
    const float* grad = widened(a.grad_out + row * n, n, scratch.row(2));
    float* grad_x = room(a.grad_x + row * n, scratch.row(4));
    norm_backward(x, weight, grad, a.rstd_N[row], n, scratch.row(3), grad_x, sums);
    if (a.grad_sum != nullptr) {
      const float* grad_sum = widened(a.grad_sum + row * n, n, scratch.row(2));
      for (Index c = 0; c < n; ++c) grad_x[c] += grad_sum[c];
    }
    put(grad_x, n, a.grad_x + row * n);
  }
}

// ---- LayerNorm ----

template <class T>
ISTHMUS_INLINE void rows(const AddLayerNorm<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  const float* weight = widened(a.affine_2C, n, scratch.row(0));
  const float* bias = widened(a.affine_2C + n, n, scratch.row(1));
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.x + row * n, n, scratch.row(2));
    const float* delta = widened(a.delta + row * n, n, scratch.row(3));
    float* added = room(a.sum + row * n, scratch.row(4));
    for (Index c = 0; c < n; ++c) added[c] = x[c] + delta[c];
    put(added, n, a.sum + row * n);
    x = widened(a.sum + row * n, n, scratch.row(4));  // the rounded sum, as the backward pass will see it
    const float mean = sum(x, n) / static_cast<float>(n);
    float* centred = scratch.row(5);
    for (Index c = 0; c < n; ++c) centred[c] = x[c] - mean;
    const float rstd = reciprocal_root(centred, n, a.eps);
    a.mean_N[row] = mean;
    a.rstd_N[row] = rstd;
    float* out = room(a.out + row * n, scratch.row(2));
    for (Index c = 0; c < n; ++c) out[c] = centred[c] * rstd * weight[c] + bias[c];
    put(out, n, a.out + row * n);
  }
}

/// With y = x' w + b, x' = (x - mean) rstd: dx = rstd (w dy - mean(w dy) - x' mean(w dy x')), dw += dy x', db
/// += dy.
template <class T>
ISTHMUS_INLINE void rows(const AddLayerNormBackward<T>& a, Index begin, Index end, Scratch& scratch,
                         float* sums) {
  const Index n = a.channels;
  const float* weight = widened(a.affine_2C, n, scratch.row(0));
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.sum + row * n, n, scratch.row(1));
    const float* grad = widened(a.grad_out + row * n, n, scratch.row(2));
    float* grad_x = room(a.grad_x + row * n, scratch.row(4));
    float* normed = scratch.row(3);
    float* weighted = scratch.row(5);
    const float mean = a.mean_N[row], rstd = a.rstd_N[row];
    for (Index c = 0; c < n; ++c) normed[c] = (x[c] - mean) * rstd;
    for (Index c = 0; c < n; ++c) weighted[c] = grad[c] * weight[c];
    for (Index c = 0; c < n; ++c) sums[c] += grad[c] * normed[c];
    for (Index c = 0; c < n; ++c) sums[n + c] += grad[c];
    const float shift = sum(weighted, n) / static_cast<float>(n);
    const float back = dot(weighted, normed, n) / static_cast<float>(n);
    for (Index c = 0; c < n; ++c) grad_x[c] = rstd * (weighted[c] - shift - normed[c] * back);
    if (a.grad_sum != nullptr) {
      const float* grad_sum = widened(a.grad_sum + row * n, n, scratch.row(2));
      for (Index c = 0; c < n; ++c) grad_x[c] += grad_sum[c];
    }
    put(grad_x, n, a.grad_x + row * n);
  }
}

}  // namespace

ISTHMUS_KERNEL(AddNorm, a.rows, a.channels)
ISTHMUS_SUMMING_KERNEL(AddNormBackward, a.rows, a.channels, a.channels, a.weight_gradient_C)
ISTHMUS_KERNEL(AddLayerNorm, a.rows, a.channels)
ISTHMUS_SUMMING_KERNEL(AddLayerNormBackward, a.rows, a.channels, 2 * a.channels, a.affine_gradient_2C)

}  // namespace isthmus::trainer::cpu
