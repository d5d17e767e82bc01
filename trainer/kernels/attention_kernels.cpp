#include "kernels/rows.h"

namespace isthmus::trainer::cpu {
namespace {

// ---- heads ----

/// Row = (sequence b, position t), head h of `count` -> offset in [B, count, T, D].
ISTHMUS_INLINE Index head_offset(const Heads& at, Index row, Index head, Index count) {
  const Index b = row / at.length;
  const Index t = row % at.length;
  return ((b * count + head) * at.length + t) * at.head_dim;
}

/// A row's cosines or sines; null without rotation.
ISTHMUS_INLINE const float* rotation_at(const float* table, const Heads& at, Index row) {
  return table == nullptr ? nullptr : table + row % at.length * (at.head_dim / 2);
}

ISTHMUS_INLINE void rotate(const float* x, const float* cos, const float* sin, Index d, float* out) {
  if (cos == nullptr) {
    std::copy_n(x, d, out);
    return;
  }
  const Index half = d / 2;
  for (Index i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}
/// The rotation's transpose.
ISTHMUS_INLINE void rotate_back(const float* x, const float* cos, const float* sin, Index d, float* out) {
  if (cos == nullptr) {
    std::copy_n(x, d, out);
    return;
  }
  const Index half = d / 2;
  for (Index i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] + b * sin[i];
    out[i + half] = b * cos[i] - a * sin[i];
  }
}

template <class T>
ISTHMUS_INLINE void rows(const SplitHeads<T>& a, Index begin, Index end, Scratch& scratch) {
  const Heads at = a.at;
  const Index d = at.head_dim;
  const Index normed_heads = at.heads + at.kv_heads;
  const float* norms = a.norms == nullptr ? nullptr : widened(a.norms, 2 * d, scratch.row(0));
  for (Index row = begin; row < end; ++row) {
    const T* in = a.qkv + row * at.all_heads() * d;
    const float* cos = rotation_at(at.cos, at, row);
    const float* sin = rotation_at(at.sin, at, row);
    for (Index h = 0; h < normed_heads; ++h, in += d) {
      const bool is_q = h < at.heads;
      const float* x = widened(in, d, scratch.row(1));
      if (norms != nullptr) {
        const float rstd = reciprocal_root(x, d, at.eps);
        const float* weight = norms + (is_q ? 0 : d);
        float* scaled = scratch.row(2);
        for (Index i = 0; i < d; ++i) scaled[i] = x[i] * rstd * weight[i];
        a.rstd[row * normed_heads + h] = rstd;
        x = scaled;
      }
      T* out = is_q ? a.q + head_offset(at, row, h, at.heads)
                    : a.k + head_offset(at, row, h - at.heads, at.kv_heads);
      float* rotated = room(out, scratch.row(3));
      rotate(x, cos, sin, d, rotated);
      put(rotated, d, out);
    }
    for (Index h = 0; h < at.kv_heads; ++h, in += d)
      std::copy_n(in, d, a.v + head_offset(at, row, h, at.kv_heads));
  }
}

template <class T>
ISTHMUS_INLINE void rows(const SplitHeadsBackward<T>& a, Index begin, Index end, Scratch& scratch,
                         float* sums) {
  const Heads at = a.at;
  const Index d = at.head_dim;
  const Index normed_heads = at.heads + at.kv_heads;
  const float* norms = a.norms == nullptr ? nullptr : widened(a.norms, 2 * d, scratch.row(0));
  for (Index row = begin; row < end; ++row) {
    const T* in = a.qkv + row * at.all_heads() * d;
    T* out = a.grad_qkv + row * at.all_heads() * d;
    const float* cos = rotation_at(at.cos, at, row);
    const float* sin = rotation_at(at.sin, at, row);
    for (Index h = 0; h < normed_heads; ++h, in += d, out += d) {
      const bool is_q = h < at.heads;
      const T* grad = is_q ? a.grad_q + head_offset(at, row, h, at.heads)
                           : a.grad_k + head_offset(at, row, h - at.heads, at.kv_heads);
      float* result = room(out, scratch.row(2));
      float* turned = norms == nullptr ? result : scratch.row(3);
      rotate_back(widened(grad, d, scratch.row(1)), cos, sin, d, turned);
      if (norms != nullptr) {
        const float* x = widened(in, d, scratch.row(1));
        const Index which = is_q ? 0 : d;
        norm_backward(x, norms + which, turned, a.rstd[row * normed_heads + h], d, scratch.row(4), result,
                      sums + which);
      }
      put(result, d, out);
    }
    for (Index h = 0; h < at.kv_heads; ++h, out += d) {
      std::copy_n(a.grad_v + head_offset(at, row, h, at.kv_heads), d, out);
    }
  }
}

// ---- attention weights ----

template <class T>
ISTHMUS_INLINE void rows(const CausalSoftmax<T>& a, Index begin, Index end, Scratch& scratch) {
  for (Index row = begin; row < end; ++row) {
    const Index begin_column = a.back.begin(row);
    T* all = a.scores + row * a.length;
    T* scores = all + begin_column;
    const Index n = row % a.length + 1 - begin_column;
    const float* s = widened(scores, n, scratch.row(0));
    const float top = largest(s, n);
    float* weights = room(scores, scratch.row(0));
    for (Index i = 0; i < n; ++i) weights[i] = exponential((s[i] - top) * a.scale);
    const float inverse = 1.0F / sum(weights, n);
    for (Index i = 0; i < n; ++i) weights[i] *= inverse;
    put(weights, n, scores);
    std::fill(all, scores, T{});
    std::fill(scores + n, all + a.length, T{});
  }
}

template <class T>
ISTHMUS_INLINE void rows(const CausalSoftmaxBackward<T>& a, Index begin, Index end, Scratch& scratch) {
  for (Index row = begin; row < end; ++row) {
    const Index begin_column = a.back.begin(row);
    T* all = a.grad + row * a.length;
    T* grad = all + begin_column;
    const Index n = row % a.length + 1 - begin_column;
    const float* w = widened(a.weights + row * a.length + begin_column, n, scratch.row(0));
    const float* g = widened(grad, n, scratch.row(1));
    const float mean = dot(w, g, n);
    float* out = room(grad, scratch.row(1));
    for (Index i = 0; i < n; ++i) out[i] = a.scale * (w[i] * (g[i] - mean));
    put(out, n, grad);
    std::fill(all, grad, T{});
    std::fill(grad + n, all + a.length, T{});
  }
}

}  // namespace

ISTHMUS_KERNEL(SplitHeads, a.at.rows(), 2 * a.at.head_dim)
ISTHMUS_SUMMING_KERNEL(SplitHeadsBackward, a.at.rows(), 2 * a.at.head_dim, 2 * a.at.head_dim,
                       a.norms_gradient)
ISTHMUS_KERNEL(CausalSoftmax, a.rows, a.length)
ISTHMUS_KERNEL(CausalSoftmaxBackward, a.rows, a.length)

}  // namespace isthmus::trainer::cpu
