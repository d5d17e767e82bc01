#include "cpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace isthmus::trainer::cpu {
namespace {

constexpr Index row_block = 128;  ///< rows that one thread takes at a time and whose sums are added first

/// body(block, begin, end) for each block of rows, by all threads.
template <class Body>
void by_blocks(Index rows, const Body& body) {
  const Index blocks = (rows + row_block - 1) / row_block;
#pragma omp parallel for schedule(static)
  for (Index b = 0; b < blocks; ++b) body(b, b * row_block, std::min(rows, (b + 1) * row_block));
}

/// One row of sums per block of rows, added in the order of the blocks.
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
/// by its bits. Below -87 it is about 1e-38; results that must vanish are never asked for.
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

constexpr Index lanes = 16;  ///< partial sums that the compiler keeps in one vector

ISTHMUS_INLINE float total(const float (&sums)[lanes]) {
  float half[lanes / 2];
  for (Index j = 0; j < lanes / 2; ++j) half[j] = sums[j] + sums[j + lanes / 2];
  float sum = 0;
  for (const float h : half) sum += h;
  return sum;
}
/// Sum of f(i) for i in [0, n) in fixed order.
template <class F>
ISTHMUS_INLINE float sum_of(Index n, const F& f) {
  float sums[lanes] = {};
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (Index j = 0; j < lanes; ++j) sums[j] += f(i + j);
  }
  for (Index j = 0; i + j < n; ++j) sums[j] += f(i + j);
  return total(sums);
}
/// Largest f(i).
template <class F>
ISTHMUS_INLINE float largest(Index n, const F& f) {
  float tops[lanes];
  std::fill_n(tops, lanes, -std::numeric_limits<float>::infinity());
  Index i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (Index j = 0; j < lanes; ++j) {
      const float x = f(i + j);
      tops[j] = x > tops[j] ? x : tops[j];
    }
  }
  float top = tops[0];
  for (const float t : tops) top = t > top ? t : top;
  for (; i < n; ++i) top = f(i) > top ? f(i) : top;
  return top;
}

// ---- RMSNorm ----

template <class T>
ISTHMUS_INLINE float reciprocal_root(const T* x, Index n, float eps) {
  const float squares = sum_of(n, [=](Index i) { return widen(x[i]) * widen(x[i]); });
  return 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
}

template <class T>
ISTHMUS_INLINE void add_norm_rows(const AddNorm<T>& a, Index begin, Index end) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    const T* __restrict x = a.x + row * n;
    if (a.delta != nullptr) {
      const T* __restrict delta = a.delta + row * n;
      T* __restrict sum = a.sum + row * n;
      for (Index c = 0; c < n; ++c) narrow(widen(x[c]) + widen(delta[c]), sum[c]);
      x = sum;
    }
    const float rstd = reciprocal_root(x, n, a.eps);
    a.rstd_N[row] = rstd;
    T* __restrict out = a.out + row * n;
    const T* __restrict weight = a.weight_C;
    for (Index c = 0; c < n; ++c) narrow(widen(x[c]) * rstd * widen(weight[c]), out[c]);
  }
}
ISTHMUS_CLONES void run(const AddNorm<float>& a, Index begin, Index end) { add_norm_rows(a, begin, end); }
ISTHMUS_CLONES void run(const AddNorm<Bf16>& a, Index begin, Index end) { add_norm_rows(a, begin, end); }

/// One row: with y = x rstd w, dx = rstd (w dy - x rstd^2 mean(w dy x)), dw += dy x rstd.
template <class T>
ISTHMUS_INLINE void norm_backward_row(const T* __restrict x, const T* __restrict weight,
                                      const T* __restrict grad, float rstd, Index n, float* __restrict grad_x,
                                      float* __restrict weight_sums) {
  const float dot = sum_of(n, [=](Index c) { return widen(grad[c]) * widen(weight[c]) * widen(x[c]); });
  const float back = dot * rstd * rstd / static_cast<float>(n);
  for (Index c = 0; c < n; ++c) {
    const float g = widen(grad[c]);
    grad_x[c] = rstd * (g * widen(weight[c]) - widen(x[c]) * back);
    weight_sums[c] += g * widen(x[c]) * rstd;
  }
}

template <class T>
ISTHMUS_INLINE void add_norm_backward_rows(const AddNormBackward<T>& a, Index begin, Index end, float* sums,
                                           float* scratch_C) {
  const Index n = a.channels;
  for (Index row = begin; row < end; ++row) {
    norm_backward_row(a.sum + row * n, a.weight_C, a.grad_out + row * n, a.rstd_N[row], n, scratch_C, sums);
    T* __restrict out = a.grad_x + row * n;
    const float* __restrict through = scratch_C;
    if (a.grad_sum == nullptr) {
      for (Index c = 0; c < n; ++c) narrow(through[c], out[c]);
    } else {
      const T* __restrict grad_sum = a.grad_sum + row * n;
      for (Index c = 0; c < n; ++c) narrow(through[c] + widen(grad_sum[c]), out[c]);
    }
  }
}
ISTHMUS_CLONES void run(const AddNormBackward<float>& a, Index begin, Index end, float* sums,
                        float* scratch) {
  add_norm_backward_rows(a, begin, end, sums, scratch);
}
ISTHMUS_CLONES void run(const AddNormBackward<Bf16>& a, Index begin, Index end, float* sums, float* scratch) {
  add_norm_backward_rows(a, begin, end, sums, scratch);
}

template <class T>
void add_norm_backward_of(const AddNormBackward<T>& a) {
  BlockSums sums(a.rows, a.channels);
  by_blocks(a.rows, [&](Index block, Index begin, Index end) {
    std::vector<float> scratch_C(static_cast<std::size_t>(a.channels));
    run(a, begin, end, sums.of(block), scratch_C.data());
  });
  sums.add_into(a.weight_gradient_C);
}

// ---- heads ----

/// Row `n` = (sequence b, position t), head h of `count` -> offset in [B, count, T, D].
ISTHMUS_INLINE Index head_offset(const Heads& at, Index row, Index head, Index count) {
  const Index b = row / at.length;
  const Index t = row % at.length;
  return ((b * count + head) * at.length + t) * at.head_dim;
}

/// One head's vector, normed by `scale` and weight if there is one, rotated to position t.
template <class T>
ISTHMUS_INLINE void rotate(const T* __restrict x, const T* __restrict weight, float scale,
                           const float* __restrict cos, const float* __restrict sin, Index half,
                           T* __restrict out) {
  for (Index i = 0; i < half; ++i) {
    float a = widen(x[i]) * scale;
    float b = widen(x[i + half]) * scale;
    if (weight != nullptr) {
      a *= widen(weight[i]);
      b *= widen(weight[i + half]);
    }
    narrow(a * cos[i] - b * sin[i], out[i]);
    narrow(b * cos[i] + a * sin[i], out[i + half]);
  }
}

template <class T>
ISTHMUS_INLINE void split_rows(const SplitHeads<T>& a, Index begin, Index end) {
  const Heads at = a.at;
  const Index d = at.head_dim;
  const Index half = d / 2;
  for (Index row = begin; row < end; ++row) {
    const T* in = a.qkv + row * at.all_heads() * d;
    const Index t = row % at.length;
    for (Index h = 0; h < at.heads + at.kv_heads; ++h, in += d) {
      const bool is_q = h < at.heads;
      const T* weight = a.norms == nullptr ? nullptr : a.norms + (is_q ? 0 : d);
      const float rstd = weight != nullptr ? reciprocal_root(in, d, at.eps) : 1.0F;
      if (weight != nullptr) a.rstd[row * (at.heads + at.kv_heads) + h] = rstd;
      T* out = is_q ? a.q + head_offset(at, row, h, at.heads)
                    : a.k + head_offset(at, row, h - at.heads, at.kv_heads);
      rotate(in, weight, rstd, at.cos + t * half, at.sin + t * half, half, out);
    }
    for (Index h = 0; h < at.kv_heads; ++h, in += d)
      std::copy_n(in, d, a.v + head_offset(at, row, h, at.kv_heads));
  }
}
ISTHMUS_CLONES void run(const SplitHeads<float>& a, Index begin, Index end) { split_rows(a, begin, end); }
ISTHMUS_CLONES void run(const SplitHeads<Bf16>& a, Index begin, Index end) { split_rows(a, begin, end); }

/// The rotation's transpose.
template <class T>
ISTHMUS_INLINE void rotate_back(const T* __restrict grad, const float* __restrict cos,
                                const float* __restrict sin, Index half, float* __restrict out) {
  for (Index i = 0; i < half; ++i) {
    const float a = widen(grad[i]);
    const float b = widen(grad[i + half]);
    out[i] = a * cos[i] + b * sin[i];
    out[i + half] = b * cos[i] - a * sin[i];
  }
}

template <class T>
ISTHMUS_INLINE void split_backward_rows(const SplitHeadsBackward<T>& a, Index begin, Index end, float* sums,
                                        float* scratch) {
  const Heads at = a.at;
  const Index d = at.head_dim;
  const Index half = d / 2;
  float* turned = scratch;
  float* through = scratch + d;
  float* weight_D = scratch + 2 * d;
  for (Index row = begin; row < end; ++row) {
    const Index t = row % at.length;
    const T* in = a.qkv + row * at.all_heads() * d;
    T* out = a.grad_qkv + row * at.all_heads() * d;
    for (Index h = 0; h < at.heads + at.kv_heads; ++h, in += d, out += d) {
      const bool is_q = h < at.heads;
      const T* weight = a.norms == nullptr ? nullptr : a.norms + (is_q ? 0 : d);
      const T* grad = is_q ? a.grad_q + head_offset(at, row, h, at.heads)
                           : a.grad_k + head_offset(at, row, h - at.heads, at.kv_heads);
      rotate_back(grad, at.cos + t * half, at.sin + t * half, half, turned);
      const float* result = turned;
      if (weight != nullptr) {
        // The rows of a head are short: its operands are widened first, so that one function serves both
        // types.
        float* x_D = weight_D + d;
        for (Index i = 0; i < d; ++i) {
          weight_D[i] = widen(weight[i]);
          x_D[i] = widen(in[i]);
        }
        const float rstd = a.rstd[row * (at.heads + at.kv_heads) + h];
        norm_backward_row<float>(x_D, weight_D, turned, rstd, d, through, sums + (is_q ? 0 : d));
        result = through;
      }
      for (Index i = 0; i < d; ++i) narrow(result[i], out[i]);
    }
    for (Index h = 0; h < at.kv_heads; ++h, out += d) {
      std::copy_n(a.grad_v + head_offset(at, row, h, at.kv_heads), d, out);
    }
  }
}
ISTHMUS_CLONES void run(const SplitHeadsBackward<float>& a, Index begin, Index end, float* sums,
                        float* scratch) {
  split_backward_rows(a, begin, end, sums, scratch);
}
ISTHMUS_CLONES void run(const SplitHeadsBackward<Bf16>& a, Index begin, Index end, float* sums,
                        float* scratch) {
  split_backward_rows(a, begin, end, sums, scratch);
}

template <class T>
void split_heads_backward_of(const SplitHeadsBackward<T>& a) {
  const Index d = a.at.head_dim;
  BlockSums sums(a.at.rows(), 2 * d);
  by_blocks(a.at.rows(), [&](Index block, Index begin, Index end) {
    std::vector<float> scratch(static_cast<std::size_t>(4 * d));
    run(a, begin, end, sums.of(block), scratch.data());
  });
  if (a.norms_gradient != nullptr) sums.add_into(a.norms_gradient);
}

// ---- attention weights ----

template <class T>
ISTHMUS_INLINE void causal_softmax_rows(const CausalSoftmax<T>& a, Index begin, Index end,
                                        float* __restrict scratch) {
  for (Index row = begin; row < end; ++row) {
    T* __restrict s = a.scores + row * a.length;
    const Index n = row % a.length + 1;
    const float scale = a.scale;
    const float top = largest(n, [=](Index i) { return widen(s[i]); });
    for (Index i = 0; i < n; ++i) scratch[i] = exponential((widen(s[i]) - top) * scale);
    const float inverse = 1.0F / sum_of(n, [=](Index i) { return scratch[i]; });
    for (Index i = 0; i < n; ++i) narrow(scratch[i] * inverse, s[i]);
    std::fill(s + n, s + a.length, T{});
  }
}
ISTHMUS_CLONES void run(const CausalSoftmax<float>& a, Index begin, Index end, float* scratch) {
  causal_softmax_rows(a, begin, end, scratch);
}
ISTHMUS_CLONES void run(const CausalSoftmax<Bf16>& a, Index begin, Index end, float* scratch) {
  causal_softmax_rows(a, begin, end, scratch);
}
template <class T>
void causal_softmax_of(const CausalSoftmax<T>& a) {
  by_blocks(a.rows, [&](Index, Index begin, Index end) {
    std::vector<float> scratch(static_cast<std::size_t>(a.length));
    run(a, begin, end, scratch.data());
  });
}

template <class T>
ISTHMUS_INLINE void causal_softmax_backward_rows(const CausalSoftmaxBackward<T>& a, Index begin, Index end) {
  for (Index row = begin; row < end; ++row) {
    const T* __restrict w = a.weights + row * a.length;
    T* __restrict g = a.grad + row * a.length;
    const Index n = row % a.length + 1;
    const float scale = a.scale;
    const float dot = sum_of(n, [=](Index i) { return widen(w[i]) * widen(g[i]); });
    for (Index i = 0; i < n; ++i) narrow(scale * (widen(w[i]) * (widen(g[i]) - dot)), g[i]);
    std::fill(g + n, g + a.length, T{});
  }
}
ISTHMUS_CLONES void run(const CausalSoftmaxBackward<float>& a, Index begin, Index end) {
  causal_softmax_backward_rows(a, begin, end);
}
ISTHMUS_CLONES void run(const CausalSoftmaxBackward<Bf16>& a, Index begin, Index end) {
  causal_softmax_backward_rows(a, begin, end);
}

// ---- feed-forward ----

template <class T>
ISTHMUS_INLINE void swiglu_rows(const SwiGlu<T>& a, Index begin, Index end) {
  for (Index row = begin; row < end; ++row) {
    const T* __restrict gate = a.gate_up + row * 2 * a.channels;
    const T* __restrict up = gate + a.channels;
    T* __restrict out = a.out + row * a.channels;
    for (Index i = 0; i < a.channels; ++i) {
      const float x = widen(gate[i]);
      narrow(x / (1.0F + exponential(-x)) * widen(up[i]), out[i]);
    }
  }
}
ISTHMUS_CLONES void run(const SwiGlu<float>& a, Index begin, Index end) { swiglu_rows(a, begin, end); }
ISTHMUS_CLONES void run(const SwiGlu<Bf16>& a, Index begin, Index end) { swiglu_rows(a, begin, end); }

template <class T>
ISTHMUS_INLINE void swiglu_backward_rows(const SwiGluBackward<T>& a, Index begin, Index end) {
  for (Index row = begin; row < end; ++row) {
    const T* __restrict gate = a.gate_up + row * 2 * a.channels;
    const T* __restrict up = gate + a.channels;
    const T* __restrict grad = a.grad_out + row * a.channels;
    T* __restrict grad_gate = a.grad_gate_up + row * 2 * a.channels;
    T* __restrict grad_up = grad_gate + a.channels;
    for (Index i = 0; i < a.channels; ++i) {
      const float x = widen(gate[i]);
      const float g = widen(grad[i]);
      const float sigmoid = 1.0F / (1.0F + exponential(-x));
      narrow(g * widen(up[i]) * sigmoid * (1.0F + x * (1.0F - sigmoid)), grad_gate[i]);
      narrow(g * x * sigmoid, grad_up[i]);
    }
  }
}
ISTHMUS_CLONES void run(const SwiGluBackward<float>& a, Index begin, Index end) {
  swiglu_backward_rows(a, begin, end);
}
ISTHMUS_CLONES void run(const SwiGluBackward<Bf16>& a, Index begin, Index end) {
  swiglu_backward_rows(a, begin, end);
}

// ---- loss ----

template <class T>
ISTHMUS_INLINE double softmax_loss_rows(const SoftmaxLoss<T>& a, Index begin, Index end,
                                        float* __restrict scratch) {
  double loss = 0;
  for (Index row = begin; row < end; ++row) {
    T* __restrict z = a.logits + row * a.vocab;
    const auto target = a.targets_N[row];
    const float top = largest(a.vocab, [=](Index i) { return widen(z[i]); });
    for (Index i = 0; i < a.vocab; ++i) scratch[i] = exponential(widen(z[i]) - top);
    const float sum = sum_of(a.vocab, [=](Index i) { return scratch[i]; });
    loss += std::log(static_cast<double>(sum)) - static_cast<double>(widen(z[target]) - top);
    const float factor = a.scale / sum;
    scratch[target] -= sum;
    for (Index i = 0; i < a.vocab; ++i) narrow(scratch[i] * factor, z[i]);
  }
  return loss;
}
ISTHMUS_CLONES double run(const SoftmaxLoss<float>& a, Index begin, Index end, float* scratch) {
  return softmax_loss_rows(a, begin, end, scratch);
}
ISTHMUS_CLONES double run(const SoftmaxLoss<Bf16>& a, Index begin, Index end, float* scratch) {
  return softmax_loss_rows(a, begin, end, scratch);
}
template <class T>
double softmax_loss_of(const SoftmaxLoss<T>& a) {
  std::vector<double> losses(static_cast<std::size_t>((a.rows + row_block - 1) / row_block));
  by_blocks(a.rows, [&](Index block, Index begin, Index end) {
    std::vector<float> scratch(static_cast<std::size_t>(a.vocab));
    losses[static_cast<std::size_t>(block)] = run(a, begin, end, scratch.data());
  });
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

template <class Operation>
void by_rows(Index rows, const Operation& a) {
  by_blocks(rows, [&](Index, Index begin, Index end) { run(a, begin, end); });
}

}  // namespace

void add_norm(const AddNorm<float>& a) { by_rows(a.rows, a); }
void add_norm(const AddNorm<Bf16>& a) { by_rows(a.rows, a); }
void add_norm_backward(const AddNormBackward<float>& a) { add_norm_backward_of(a); }
void add_norm_backward(const AddNormBackward<Bf16>& a) { add_norm_backward_of(a); }
void split_heads(const SplitHeads<float>& a) { by_rows(a.at.rows(), a); }
void split_heads(const SplitHeads<Bf16>& a) { by_rows(a.at.rows(), a); }
void split_heads_backward(const SplitHeadsBackward<float>& a) { split_heads_backward_of(a); }
void split_heads_backward(const SplitHeadsBackward<Bf16>& a) { split_heads_backward_of(a); }
void causal_softmax(const CausalSoftmax<float>& a) { causal_softmax_of(a); }
void causal_softmax(const CausalSoftmax<Bf16>& a) { causal_softmax_of(a); }
void causal_softmax_backward(const CausalSoftmaxBackward<float>& a) { by_rows(a.rows, a); }
void causal_softmax_backward(const CausalSoftmaxBackward<Bf16>& a) { by_rows(a.rows, a); }
void swiglu(const SwiGlu<float>& a) { by_rows(a.rows, a); }
void swiglu(const SwiGlu<Bf16>& a) { by_rows(a.rows, a); }
void swiglu_backward(const SwiGluBackward<float>& a) { by_rows(a.rows, a); }
void swiglu_backward(const SwiGluBackward<Bf16>& a) { by_rows(a.rows, a); }
double softmax_loss(const SoftmaxLoss<float>& a) { return softmax_loss_of(a); }
double softmax_loss(const SoftmaxLoss<Bf16>& a) { return softmax_loss_of(a); }

}  // namespace isthmus::trainer::cpu
