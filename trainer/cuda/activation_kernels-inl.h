// Activations, forward and backward, and the loss. Included by decoder_kernels-inl.h.

// ---- activations ----

ISTHMUS_LANES float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/// See SwiGlu.
template <class T>
__global__ void swiglu_rows(cpu::SwiGlu<T> a) {
  const Index n = a.channels;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* in = a.gate_up + row * 2 * n;
    for (Index at = own_begin(); at < n; at += stride) {
      float gate[group], up[group];
      load(in, n, at, gate);
      load(in + n, n, at, up);
      for (Index k = 0; k < group; ++k) gate[k] *= sigmoid(gate[k]) * up[k];
      store(gate, a.out + row * n, n, at);
    }
  }
}

template <class T>
__global__ void swiglu_rows_backward(cpu::SwiGluBackward<T> a) {
  const Index n = a.channels;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* in = a.gate_up + row * 2 * n;
    T* out = a.grad_gate_up + row * 2 * n;
    for (Index at = own_begin(); at < n; at += stride) {
      float gate[group], up[group], grad[group], made[group];
      load(in, n, at, gate);
      load(in + n, n, at, up);
      load(a.grad_out + row * n, n, at, grad);
      for (Index k = 0; k < group; ++k) {
        const float s = sigmoid(gate[k]), silu = gate[k] * s;
        made[k] = gate[k] * (s * up[k]);
        gate[k] = grad[k] * up[k] * (s + silu * (1 - s));
        up[k] = grad[k] * silu;
      }
      store(gate, out, n, at);
      store(up, out + n, n, at);
      store(made, a.out + row * n, n, at);
    }
  }
}

inline constexpr float gelu_scale = 1.5957691216F;  ///< 2 sqrt(2 / pi)
inline constexpr float gelu_cubic = 0.044715F;
ISTHMUS_LANES float gelu_gate(float x) { return sigmoid(gelu_scale * (x + gelu_cubic * x * x * x)); }

template <class T>
__global__ void gelu_rows(cpu::Gelu<T> a) {
  const Index n = a.channels;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group];
      load(a.x + row * n, n, at, x);
      for (Index k = 0; k < group; ++k) x[k] *= gelu_gate(x[k]);
      store(x, a.out + row * n, n, at);
    }
  }
}

/// `grad_x` may be `grad_out`.
template <class T>
__global__ void gelu_rows_backward(cpu::GeluBackward<T> a) {
  const Index n = a.channels;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group], grad[group], made[group];
      load(a.x + row * n, n, at, x);
      load(a.grad_out + row * n, n, at, grad);
      for (Index k = 0; k < group; ++k) {
        const float s = gelu_gate(x[k]);
        made[k] = x[k] * s;
        const float slope = gelu_scale * (1 + 3 * gelu_cubic * x[k] * x[k]);
        grad[k] *= s + x[k] * s * (1 - s) * slope;
      }
      store(grad, a.grad_x + row * n, n, at);
      store(made, a.out + row * n, n, at);
    }
  }
}

// ---- loss ----

ISTHMUS_LANES float exp_of(float x, float) { return expf(x); }
/// Accurate enough for bf16: the hardware's own, good to about 2^-20.
ISTHMUS_LANES float exp_of(float x, Bf16) { return ISTHMUS_FAST_EXP(x); }

/// Loads groups of a row, `stride` apart. Elements past the end of the n elements become `fill`.
template <int groups, class T>
ISTHMUS_LANES void load_tile(const T* p, Index n, Index begin, bool dense, float fill,
                             float (&x)[groups][group]) {
  if (dense && begin + (groups - 1) * stride + group <= n) {
    Four<T> read[groups];
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) read[g] = *reinterpret_cast<const Four<T>*>(p + begin + g * stride);
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) unpack(read[g], x[g]);
    return;
  }
  for (int g = 0; g < groups; ++g) {
    load(p, n, begin + g * stride, x[g]);
    for (Index k = 0; k < group; ++k) x[g][k] = begin + g * stride + k < n ? x[g][k] : fill;
  }
}

/// Writes a row's loss to losses_N. Reads the logits twice and writes them once, without other memory of
/// their size. Columns from `vocab` on become zero.
template <class T>
__global__ void softmax_loss_rows(cpu::SoftmaxLoss<T> a, float* losses_N) {
  constexpr int groups = 4;
  const Index n = a.vocab;
  const bool dense =
      a.stride % group == 0 && reinterpret_cast<std::uintptr_t>(a.logits) % sizeof(Four<T>) == 0;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    T* logits = a.logits + row * a.stride;
    const Index target = a.targets_N[row];
    const bool exists = target >= 0 && target < n;
    const float of_target = exists ? wide(logits[target]) : NAN;  // before logits are overwritten
    float top = -INFINITY, sum = 0;                               // of exp(x - top)
    for (Index begin = own_begin(); begin < n; begin += groups * stride) {
      float x[groups][group];
      load_tile(logits, n, begin, dense, -INFINITY, x);
      float higher = top;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) higher = Larger::of(x[g][k], higher);
      }
      sum *= exp_of(top - higher, T{});
      top = higher;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) sum += exp_of(x[g][k] - top, T{});
      }
    }
    const float highest = over_block<Larger>(top);
    sum = over_block<Sum>(top == -INFINITY ? sum : sum * exp_of(top - highest, T{}));  // NaN stays NaN
    const float log_sum = highest + logf(sum);
    const float factor = a.scale * (1 + 2 * a.z_loss * log_sum);
    for (Index begin = own_begin(); begin < a.stride; begin += groups * stride) {
      float x[groups][group];
      load_tile(logits, n, begin, dense, -INFINITY, x);
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) x[g][k] = factor * exp_of(x[g][k] - log_sum, T{});
        if (dense)
          put_dense(x[g], logits, a.stride, begin + g * stride);
        else
          store(x[g], logits, a.stride, begin + g * stride);
      }
    }
    __syncthreads();
    if (threadIdx.x != 0) continue;
    losses_N[row] = log_sum - of_target;
    if (exists) put(factor * exp_of(of_target - log_sum, T{}) - a.scale, logits[target]);
  }
}
