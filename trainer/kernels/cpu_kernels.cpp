#include "kernels/cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace isthmus::trainer::cpu {
namespace {

constexpr Index scratch_rows = 6;  ///< the most rows that a kernel uses
constexpr Index row_block = 128;   ///< rows that one thread takes at a time, and over which sums are added
                                   ///< first

/// Calls body(block, begin, end) for each block of rows, on all threads.
template <class Body>
void by_blocks(Index rows, const Body& body) {
  const Index blocks = (rows + row_block - 1) / row_block;
#pragma omp parallel for schedule(static)
  for (Index b = 0; b < blocks; ++b) body(b, b * row_block, std::min(rows, (b + 1) * row_block));
}

/// A row of sums for each block of rows; the blocks' sums are added in order.
class BlockSums {
 public:
  BlockSums(Index rows, Index width)
      : width_(width), sums_(static_cast<std::size_t>((rows + row_block - 1) / row_block * width)) {}
  float* of(Index block) { return sums_.data() + block * width_; }
  void add_into(float* out) const {
    std::fill_n(out, width_, 0.0F);
    for (auto at = sums_.begin(); at != sums_.end(); at += width_) {
      for (Index c = 0; c < width_; ++c) out[c] += at[c];
    }
  }

 private:
  Index width_;
  std::vector<float> sums_;
};

/// e^x: x = n ln 2 + r, |r| <= ln 2 / 2; Taylor to r^6 with Horner's rule (relative error 2e-7), exponent n
/// by its bits. Below -87 it returns about 1e-38; no caller needs an exact zero.
ISTHMUS_INLINE float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: the sum's low bits are round(x / ln 2)
  const float n = shifted - 12582912.0F;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float y = 1.0F / 720;
  y = y * r + 1.0F / 120;
  y = y * r + 1.0F / 24;
  y = y * r + 1.0F / 6;
  y = y * r + 0.5F;
  y = y * r + 1.0F;
  y = y * r + 1.0F;
  const auto bits = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
  return y * std::bit_cast<float>((bits + 127) << 23);
}

// Every kernel works row by row: it widens the row's operands to fp32 (a row stays in the first-level cache),
// computes in loops over fp32 alone, which any compiler vectorises, and narrows the results.

ISTHMUS_INLINE const float* widened(const float* row, Index, float*) { return row; }
ISTHMUS_INLINE const float* widened(const Bf16* row, Index n, float* scratch) {
  for (Index i = 0; i < n; ++i) scratch[i] = widen(row[i]);
  return scratch;
}
/// Where results are computed: directly in the row, or in scratch, from which `put` narrows them.
ISTHMUS_INLINE float* room(float* row, float*) { return row; }
ISTHMUS_INLINE float* room(Bf16*, float* scratch) { return scratch; }
ISTHMUS_INLINE void put(const float*, Index, float*) {}
ISTHMUS_INLINE void put(const float* computed, Index n, Bf16* row) {
  for (Index i = 0; i < n; ++i) narrow(computed[i], row[i]);
}

constexpr Index lanes = 16;
using Lanes = float __attribute__((vector_size(lanes * sizeof(float))));

ISTHMUS_INLINE void load(const float* from, Lanes& to) { std::memcpy(&to, from, sizeof to); }

ISTHMUS_INLINE float sum(const float* x, Index n) {
  Lanes sums = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    Lanes part;
    load(x + i, part);
    sums += part;
  }
  float total = 0;
  for (Index j = 0; j < lanes; ++j) total += sums[j];
  for (; i < n; ++i) total += x[i];
  return total;
}
ISTHMUS_INLINE float dot(const float* x, const float* y, Index n) {
  Lanes sums = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    Lanes a, b;
    load(x + i, a);
    load(y + i, b);
    sums += a * b;
  }
  float total = 0;
  for (Index j = 0; j < lanes; ++j) total += sums[j];
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}
ISTHMUS_INLINE float largest(const float* x, Index n) {
  float top = x[0];
  Index i = 0;
  if (n >= lanes) {
    Lanes tops;
    load(x, tops);
    for (i = lanes; i + lanes <= n; i += lanes) {
      Lanes part;
      load(x + i, part);
      tops = part > tops ? part : tops;
    }
    for (Index j = 0; j < lanes; ++j) top = tops[j] > top ? tops[j] : top;
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

/// Rows of fp32 numbers, in one allocation for each block of rows.
class Scratch {
 public:
  Scratch(Index rows, Index width) : width_(width), numbers_(static_cast<std::size_t>(rows * width)) {}
  float* row(Index i) { return numbers_.data() + i * width_; }

 private:
  Index width_;
  std::vector<float> numbers_;
};

// ---- RMSNorm ----

ISTHMUS_INLINE float reciprocal_root(const float* x, Index n, float eps) {
  return 1.0F / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

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

/// One row: with y = x rstd w, dx = rstd (w dy - x rstd^2 mean(w dy x)), dw += dy x rstd. `weighted` is
/// scratch.
ISTHMUS_INLINE void norm_backward(const float* x, const float* weight, const float* grad, float rstd, Index n,
                                  float* weighted, float* grad_x, float* weight_sums) {
  for (Index c = 0; c < n; ++c) {
    weighted[c] = grad[c] * weight[c];
    weight_sums[c] += grad[c] * x[c] * rstd;
  }
  const float back = dot(weighted, x, n) * rstd * rstd / static_cast<float>(n);
  for (Index c = 0; c < n; ++c) grad_x[c] = rstd * (weighted[c] - x[c] * back);
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

// ---- feed-forward ----

ISTHMUS_INLINE void sigmoids(const float* x, Index n, float* out) {
  for (Index i = 0; i < n; ++i) out[i] = 1.0F / (1.0F + exponential(-x[i]));
}

template <class T>
ISTHMUS_INLINE void rows(const SwiGlu<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    const float* gate = widened(a.gate_up + row * 2 * n, n, scratch.row(0));
    const float* up = widened(a.gate_up + row * 2 * n + n, n, scratch.row(1));
    float* out = room(a.out + row * n, scratch.row(2));
    float* sigmoid = scratch.row(3);
    sigmoids(gate, n, sigmoid);
    for (Index i = 0; i < n; ++i) out[i] = gate[i] * sigmoid[i] * up[i];
    put(out, n, a.out + row * n);
  }
}

template <class T>
ISTHMUS_INLINE void rows(const SwiGluBackward<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    const float* gate = widened(a.gate_up + row * 2 * n, n, scratch.row(0));
    const float* up = widened(a.gate_up + row * 2 * n + n, n, scratch.row(1));
    const float* grad = widened(a.grad_out + row * n, n, scratch.row(2));
    T* out = a.grad_gate_up + row * 2 * n;
    float* grad_gate = room(out, scratch.row(3));
    float* grad_up = room(out + n, scratch.row(4));
    float* sigmoid = scratch.row(5);
    sigmoids(gate, n, sigmoid);
    for (Index i = 0; i < n; ++i) {
      grad_gate[i] = grad[i] * up[i] * sigmoid[i] * (1.0F + gate[i] * (1.0F - sigmoid[i]));
    }
    for (Index i = 0; i < n; ++i) grad_up[i] = grad[i] * gate[i] * sigmoid[i];
    put(grad_gate, n, out);
    put(grad_up, n, out + n);
    float* again = room(a.out + row * n, scratch.row(2));
    for (Index i = 0; i < n; ++i) again[i] = gate[i] * sigmoid[i] * up[i];
    put(again, n, a.out + row * n);
  }
}

constexpr float gelu_slope = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715F;

/// sigmoid(2 u) of each element.
ISTHMUS_INLINE void gelu_gates(const float* x, Index n, float* out) {
  for (Index i = 0; i < n; ++i) {
    const float twice_u = gelu_slope * (x[i] + gelu_cubic * x[i] * x[i] * x[i]);
    out[i] = 1.0F / (1.0F + exponential(-twice_u));
  }
}

template <class T>
ISTHMUS_INLINE void rows(const Gelu<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.x + row * n, n, scratch.row(0));
    float* out = room(a.out + row * n, scratch.row(1));
    float* gate = scratch.row(2);
    gelu_gates(x, n, gate);
    for (Index i = 0; i < n; ++i) out[i] = x[i] * gate[i];
    put(out, n, a.out + row * n);
  }
}

template <class T>
ISTHMUS_INLINE void rows(const GeluBackward<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    const float* x = widened(a.x + row * n, n, scratch.row(0));
    const float* grad = widened(a.grad_out + row * n, n, scratch.row(1));
    float* grad_x = room(a.grad_x + row * n, scratch.row(2));
    float* gate = scratch.row(3);
    gelu_gates(x, n, gate);
    for (Index i = 0; i < n; ++i) {
      const float slope = gelu_slope * (1.0F + 3.0F * gelu_cubic * x[i] * x[i]);
      grad_x[i] = grad[i] * gate[i] * (1.0F + x[i] * (1.0F - gate[i]) * slope);
    }
    put(grad_x, n, a.grad_x + row * n);
    float* out = room(a.out + row * n, scratch.row(4));
    for (Index i = 0; i < n; ++i) out[i] = x[i] * gate[i];
    put(out, n, a.out + row * n);
  }
}

// ---- loss ----

template <class T>
ISTHMUS_INLINE double rows(const SoftmaxLoss<T>& a, Index begin, Index end, Scratch& scratch) {
  const Index n = a.vocab;
  double loss = 0;
  for (Index row = begin; row < end; ++row) {
    T* logits = a.logits + row * n;
    const auto target = a.targets_N[row];
    const float* z = widened(logits, n, scratch.row(0));
    const float top = largest(z, n);
    const float target_logit = z[target];
    float* weights = room(logits, scratch.row(0));
    for (Index i = 0; i < n; ++i) weights[i] = exponential(z[i] - top);
    const float total = sum(weights, n);
    const double log_total = std::log(static_cast<double>(total));
    loss += log_total - static_cast<double>(target_logit - top);
    const float factor = a.scale / total;
    const float pull = 1.0F + 2.0F * a.z_loss * static_cast<float>(log_total + static_cast<double>(top));
    const float target_gradient = (weights[target] * pull - total) * factor;
    for (Index i = 0; i < n; ++i) weights[i] *= factor * pull;
    weights[target] = target_gradient;
    put(weights, n, logits);
  }
  return loss;
}

// One function for each kernel and type, which ISTHMUS_CLONES compiles in several versions.
#define ISTHMUS_RUN(Result, Kernel)                                                             \
  ISTHMUS_CLONES Result run(const Kernel<float>& a, Index begin, Index end, Scratch& scratch) { \
    return rows(a, begin, end, scratch);                                                        \
  }                                                                                             \
  ISTHMUS_CLONES Result run(const Kernel<Bf16>& a, Index begin, Index end, Scratch& scratch) {  \
    return rows(a, begin, end, scratch);                                                        \
  }
#define ISTHMUS_RUN_SUMMING(Kernel)                                                                        \
  ISTHMUS_CLONES void run(const Kernel<float>& a, Index begin, Index end, Scratch& scratch, float* sums) { \
    rows(a, begin, end, scratch, sums);                                                                    \
  }                                                                                                        \
  ISTHMUS_CLONES void run(const Kernel<Bf16>& a, Index begin, Index end, Scratch& scratch, float* sums) {  \
    rows(a, begin, end, scratch, sums);                                                                    \
  }
ISTHMUS_RUN(void, AddNorm)
ISTHMUS_RUN(void, AddLayerNorm)
ISTHMUS_RUN(void, SplitHeads)
ISTHMUS_RUN(void, CausalSoftmax)
ISTHMUS_RUN(void, CausalSoftmaxBackward)
ISTHMUS_RUN(void, SwiGlu)
ISTHMUS_RUN(void, SwiGluBackward)
ISTHMUS_RUN(void, Gelu)
ISTHMUS_RUN(void, GeluBackward)
ISTHMUS_RUN(double, SoftmaxLoss)
ISTHMUS_RUN_SUMMING(AddNormBackward)
ISTHMUS_RUN_SUMMING(AddLayerNormBackward)
ISTHMUS_RUN_SUMMING(SplitHeadsBackward)
#undef ISTHMUS_RUN
#undef ISTHMUS_RUN_SUMMING

/// Runs a kernel without sums on all rows; `width` is the longest row of its scratch.
template <class Kernel>
void all_rows(const Kernel& a, Index count, Index width) {
  by_blocks(count, [&](Index, Index begin, Index end) {
    Scratch scratch(scratch_rows, width);
    run(a, begin, end, scratch);
  });
}
/// Runs a kernel on all rows and writes its `sum_width` sums to `out`, which may be null.
template <class Kernel>
void all_rows_summing(const Kernel& a, Index count, Index width, Index sum_width, float* out) {
  BlockSums sums(count, sum_width);
  by_blocks(count, [&](Index block, Index begin, Index end) {
    Scratch scratch(scratch_rows, width);
    run(a, begin, end, scratch, sums.of(block));
  });
  if (out != nullptr) sums.add_into(out);
}
template <class T>
double loss_of(const SoftmaxLoss<T>& a) {
  std::vector<double> losses(static_cast<std::size_t>((a.rows + row_block - 1) / row_block));
  by_blocks(a.rows, [&](Index block, Index begin, Index end) {
    Scratch scratch(1, a.vocab);
    losses[static_cast<std::size_t>(block)] = run(a, begin, end, scratch);
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

}  // namespace

void add_norm(const AddNorm<float>& a) { all_rows(a, a.rows, a.channels); }
void add_norm(const AddNorm<Bf16>& a) { all_rows(a, a.rows, a.channels); }
void add_norm_backward(const AddNormBackward<float>& a) {
  all_rows_summing(a, a.rows, a.channels, a.channels, a.weight_gradient_C);
}
void add_norm_backward(const AddNormBackward<Bf16>& a) {
  all_rows_summing(a, a.rows, a.channels, a.channels, a.weight_gradient_C);
}
void add_layer_norm(const AddLayerNorm<float>& a) { all_rows(a, a.rows, a.channels); }
void add_layer_norm(const AddLayerNorm<Bf16>& a) { all_rows(a, a.rows, a.channels); }
void add_layer_norm_backward(const AddLayerNormBackward<float>& a) {
  all_rows_summing(a, a.rows, a.channels, 2 * a.channels, a.affine_gradient_2C);
}
void add_layer_norm_backward(const AddLayerNormBackward<Bf16>& a) {
  all_rows_summing(a, a.rows, a.channels, 2 * a.channels, a.affine_gradient_2C);
}
void split_heads(const SplitHeads<float>& a) { all_rows(a, a.at.rows(), 2 * a.at.head_dim); }
void split_heads(const SplitHeads<Bf16>& a) { all_rows(a, a.at.rows(), 2 * a.at.head_dim); }
void split_heads_backward(const SplitHeadsBackward<float>& a) {
  all_rows_summing(a, a.at.rows(), 2 * a.at.head_dim, 2 * a.at.head_dim, a.norms_gradient);
}
void split_heads_backward(const SplitHeadsBackward<Bf16>& a) {
  all_rows_summing(a, a.at.rows(), 2 * a.at.head_dim, 2 * a.at.head_dim, a.norms_gradient);
}
void causal_softmax(const CausalSoftmax<float>& a) { all_rows(a, a.rows, a.length); }
void causal_softmax(const CausalSoftmax<Bf16>& a) { all_rows(a, a.rows, a.length); }
void causal_softmax_backward(const CausalSoftmaxBackward<float>& a) { all_rows(a, a.rows, a.length); }
void causal_softmax_backward(const CausalSoftmaxBackward<Bf16>& a) { all_rows(a, a.rows, a.length); }
void swiglu(const SwiGlu<float>& a) { all_rows(a, a.rows, a.channels); }
void swiglu(const SwiGlu<Bf16>& a) { all_rows(a, a.rows, a.channels); }
void swiglu_backward(const SwiGluBackward<float>& a) { all_rows(a, a.rows, a.channels); }
void swiglu_backward(const SwiGluBackward<Bf16>& a) { all_rows(a, a.rows, a.channels); }
void gelu(const Gelu<float>& a) { all_rows(a, a.rows, a.channels); }
void gelu(const Gelu<Bf16>& a) { all_rows(a, a.rows, a.channels); }
void gelu_backward(const GeluBackward<float>& a) { all_rows(a, a.rows, a.channels); }
void gelu_backward(const GeluBackward<Bf16>& a) { all_rows(a, a.rows, a.channels); }
double softmax_loss(const SoftmaxLoss<float>& a) { return loss_of(a); }
double softmax_loss(const SoftmaxLoss<Bf16>& a) { return loss_of(a); }

}  // namespace isthmus::trainer::cpu
