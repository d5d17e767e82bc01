#include "kernels/rows.h"

namespace isthmus::trainer::cpu {
namespace {

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

}  // namespace

ISTHMUS_KERNEL(SwiGlu, a.rows, a.channels)
ISTHMUS_KERNEL(SwiGluBackward, a.rows, a.channels)
ISTHMUS_KERNEL(Gelu, a.rows, a.channels)
ISTHMUS_KERNEL(GeluBackward, a.rows, a.channels)

}  // namespace isthmus::trainer::cpu
