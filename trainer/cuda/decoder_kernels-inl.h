// The decoder's element-wise parts on a GPU; cpu_kernels.h says what each computes. Arithmetic is fp32
// whatever the storage type. A block of threads has a row (norms' gradients: some rows, one after the other),
// and each thread of it the same columns of every row: groups of four neighbours, a row's stride apart. Sums
// are added in a fixed order, so results repeat to the bit.
//
// Included by decoder_kernels.cu, and by a test that runs the kernels' threads one after the other on the
// CPU.
//
// No include guard, on purpose.

inline constexpr unsigned threads = 256;
inline constexpr unsigned warp_size = 32;
inline constexpr unsigned warps = threads / warp_size;
inline constexpr unsigned all_lanes = 0xffffffff;
inline constexpr Index group = 4;  ///< neighbouring elements that a thread reads at once
inline constexpr Index stride = threads * group;

// ---- memory ----

struct alignas(8) FourBf16 {
  std::uint32_t low, high;
};

ISTHMUS_LANES float wide(float x) { return x; }
ISTHMUS_LANES float wide(Bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
/// Round to nearest, ties to even. Rounding would wrap a GPU's own NaN, 0x7fffffff, to -0.
ISTHMUS_LANES std::uint32_t bf16_bits(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}
ISTHMUS_LANES void put(float x, float& out) { out = x; }
ISTHMUS_LANES void put(float x, Bf16& out) { out.bits = static_cast<std::uint16_t>(bf16_bits(x)); }

ISTHMUS_LANES void read_four(const float* p, float (&x)[group]) {
  const float4 got = *reinterpret_cast<const float4*>(p);
  x[0] = got.x;
  x[1] = got.y;
  x[2] = got.z;
  x[3] = got.w;
}
ISTHMUS_LANES void read_four(const Bf16* p, float (&x)[group]) {
  const FourBf16 got = *reinterpret_cast<const FourBf16*>(p);
  x[0] = __uint_as_float(got.low << 16);
  x[1] = __uint_as_float(got.low & 0xffff0000U);
  x[2] = __uint_as_float(got.high << 16);
  x[3] = __uint_as_float(got.high & 0xffff0000U);
}
ISTHMUS_LANES void write_four(const float (&x)[group], float* p) {
  *reinterpret_cast<float4*>(p) = float4{x[0], x[1], x[2], x[3]};
}
ISTHMUS_LANES void write_four(const float (&x)[group], Bf16* p) {
  *reinterpret_cast<FourBf16*>(p) =
      FourBf16{bf16_bits(x[0]) | bf16_bits(x[1]) << 16, bf16_bits(x[2]) | bf16_bits(x[3]) << 16};
}

/// The group from `at` on of the n elements at `p`; zeros past their end.
template <class T>
ISTHMUS_LANES void load(const T* p, Index n, Index at, float (&x)[group]) {
  const bool together =
      at + group <= n && reinterpret_cast<std::uintptr_t>(p + at) % (group * sizeof(T)) == 0;
  if (together) return read_four(p + at, x);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) x[k] = at + k < n ? wide(p[at + k]) : 0;
}
template <class T>
ISTHMUS_LANES void store(const float (&x)[group], T* p, Index n, Index at) {
  const bool together =
      at + group <= n && reinterpret_cast<std::uintptr_t>(p + at) % (group * sizeof(T)) == 0;
  if (together) return write_four(x, p + at);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) {
    if (at + k < n) put(x[k], p[at + k]);
  }
}

ISTHMUS_LANES Index own_begin() { return static_cast<Index>(threadIdx.x) * group; }

// ---- over the threads of a block ----

struct Sum {
  ISTHMUS_LANES static float of(float a, float b) { return a + b; }
};
struct Larger {
  ISTHMUS_LANES static float of(float a, float b) { return a > b ? a : b; }
};

/// The same for all threads. All of them come here.
template <class Operation>
ISTHMUS_LANES float over_block(float x) {
  __shared__ float of_warp[warps];
  for (unsigned apart = warp_size / 2; apart > 0; apart /= 2)
    x = Operation::of(x, __uint_as_float(__shfl_xor_sync(all_lanes, __float_as_uint(x), apart)));
  __syncthreads();  // what was there before has been read
  if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = x;
  __syncthreads();
  float all = of_warp[0];
  for (unsigned w = 1; w < warps; ++w) all = Operation::of(all, of_warp[w]);
  return all;
}

// ---- norms ----

/// One row of AddNorm, or of AddLayerNorm where `means` is not null. The sum is read again as it was stored,
/// which is what the backward pass will see.
template <class T>
struct NormRows {
  Index rows, channels;
  float eps;
  const T *x, *delta, *weight, *bias;  ///< `delta` and `bias` may be null
  T *sum, *out;
  float *means, *rstds;
};

template <class T>
__global__ void norm_rows(NormRows<T> a) {
  const Index n = a.channels;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* normed = (a.delta == nullptr ? a.x : a.sum) + row * n;
    float total = 0;
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group], delta[group];
      load(a.x + row * n, n, at, x);
      if (a.delta != nullptr) {
        load(a.delta + row * n, n, at, delta);
        for (Index k = 0; k < group; ++k) x[k] += delta[k];
        store(x, a.sum + row * n, n, at);
        load(normed, n, at, x);
      }
      for (Index k = 0; k < group; ++k) total += a.means == nullptr ? x[k] * x[k] : x[k];
    }
    total = over_block<Sum>(total);
    float mean = 0;
    if (a.means != nullptr) {
      mean = total / static_cast<float>(n);
      total = 0;
      for (Index at = own_begin(); at < n; at += stride) {
        float x[group];
        load(normed, n, at, x);
        for (Index k = 0; k < group; ++k) {
          const float off = at + k < n ? x[k] - mean : 0;
          total += off * off;
        }
      }
      total = over_block<Sum>(total);
    }
    const float rstd = 1 / sqrtf(total / static_cast<float>(n) + a.eps);
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group], weight[group], bias[group] = {};
      load(normed, n, at, x);
      load(a.weight, n, at, weight);
      if (a.bias != nullptr) load(a.bias, n, at, bias);
      for (Index k = 0; k < group; ++k) x[k] = (x[k] - mean) * rstd * weight[k] + bias[k];
      store(x, a.out + row * n, n, at);
    }
    if (threadIdx.x != 0) continue;
    a.rstds[row] = rstd;
    if (a.means != nullptr) a.means[row] = mean;
  }
}

/// Of norm_rows. Each block of threads takes `rows_at_once` rows and writes their sums for the weight, and
/// behind them those for the bias where there are means, into a row of `block_sums`.
template <class T>
struct NormRowsBackward {
  Index rows, channels;
  const T *sum, *weight, *grad_out, *grad_sum;  ///< `grad_sum` may be null
  const float *means, *rstds;                   ///< `means` null: RMSNorm
  T* grad_x;
  float* block_sums;
};

/// `groups` of columns for each thread, as registers hold them: at least channels / stride.
template <class T, int groups>
__global__ void norm_rows_backward(NormRowsBackward<T> a) {
  const Index n = a.channels;
  const Index width = a.means == nullptr ? n : 2 * n;
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  for (Index block = blockIdx.x; block < blocks; block += gridDim.x) {
    float of_weight[groups][group] = {}, of_bias[groups][group] = {};
    const Index begin = block * rows_at_once;
    const Index end = begin + rows_at_once < a.rows ? begin + rows_at_once : a.rows;
    for (Index row = begin; row < end; ++row) {
      const float mean = a.means == nullptr ? 0 : a.means[row], rstd = a.rstds[row];
      float normed[groups][group], grad[groups][group];
      float along = 0, level = 0;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        const Index at = own_begin() + g * stride;
        float weight[group];
        load(a.sum + row * n, n, at, normed[g]);
        load(a.grad_out + row * n, n, at, grad[g]);
        load(a.weight, n, at, weight);
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) {  // past the end grad is 0
          normed[g][k] = (normed[g][k] - mean) * rstd;
          of_weight[g][k] += grad[g][k] * normed[g][k];
          of_bias[g][k] += grad[g][k];
          grad[g][k] *= weight[k];
          along += grad[g][k] * normed[g][k];
          level += grad[g][k];
        }
      }
      along = over_block<Sum>(along) / static_cast<float>(n);
      level = a.means == nullptr ? 0 : over_block<Sum>(level) / static_cast<float>(n);
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        const Index at = own_begin() + g * stride;
        float x[group] = {};
        if (a.grad_sum != nullptr) load(a.grad_sum + row * n, n, at, x);
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) x[k] += rstd * (grad[g][k] - level - normed[g][k] * along);
        store(x, a.grad_x + row * n, n, at);
      }
    }
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) {
      const Index at = own_begin() + g * stride;
      store(of_weight[g], a.block_sums + block * width, n, at);
      if (a.means != nullptr) store(of_bias[g], a.block_sums + block * width + n, n, at);
    }
  }
}

/// out[c] = the sum of column c, in the order of the rows.
__global__ void sum_columns(const float* rows, Index count, Index width, float* out) {
  for (Index c = static_cast<Index>(blockIdx.x) * threads + threadIdx.x; c < width;
       c += static_cast<Index>(gridDim.x) * threads) {
    float sum = 0;
    for (Index r = 0; r < count; ++r) sum += rows[r * width + c];
    out[c] = sum;
  }
}

// ---- activations ----

ISTHMUS_LANES float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/// f(gate, up) for elements of the same place; see SwiGlu.
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
      float gate[group], up[group], grad[group];
      load(in, n, at, gate);
      load(in + n, n, at, up);
      load(a.grad_out + row * n, n, at, grad);
      for (Index k = 0; k < group; ++k) {
        const float s = sigmoid(gate[k]), silu = gate[k] * s;
        gate[k] = grad[k] * up[k] * (s + silu * (1 - s));
        up[k] = grad[k] * silu;
      }
      store(gate, out, n, at);
      store(up, out + n, n, at);
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
      float x[group], grad[group];
      load(a.x + row * n, n, at, x);
      load(a.grad_out + row * n, n, at, grad);
      for (Index k = 0; k < group; ++k) {
        const float s = gelu_gate(x[k]);
        const float slope = gelu_scale * (1 + 3 * gelu_cubic * x[k] * x[k]);
        grad[k] *= s + x[k] * s * (1 - s) * slope;
      }
      store(grad, a.grad_x + row * n, n, at);
    }
  }
}

// ---- loss ----

/// A row's loss into losses_N. The logits are read twice and written once; nothing of their size is kept
/// beside them.
template <class T>
__global__ void softmax_loss_rows(cpu::SoftmaxLoss<T> a, float* losses_N) {
  const Index n = a.vocab;
  for (Index row = blockIdx.x; row < a.rows; row += gridDim.x) {
    T* logits = a.logits + row * n;
    const Index target = a.targets_N[row];
    const float of_target = wide(logits[target]);  // before anything is written here
    float top = -INFINITY, sum = 0;                // of exp(x - top)
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group];
      load(logits, n, at, x);
      for (Index k = 0; k < group && at + k < n; ++k) {
        const float higher = Larger::of(x[k], top);
        sum = sum * expf(top - higher) + expf(x[k] - higher);
        top = higher;
      }
    }
    const float highest = over_block<Larger>(top);
    sum = over_block<Sum>(sum * expf(top - highest));  // no columns: 0 * 0; NaN stays NaN
    const float log_sum = highest + logf(sum);
    const float factor = 1 + 2 * a.z_loss * log_sum;
    for (Index at = own_begin(); at < n; at += stride) {
      float x[group];
      load(logits, n, at, x);
      for (Index k = 0; k < group; ++k)
        x[k] = a.scale * (factor * expf(x[k] - log_sum) - (at + k == target ? 1.0F : 0.0F));
      store(x, logits, n, at);
    }
    if (threadIdx.x == 0) losses_N[row] = log_sum - of_target;
  }
}

// ---- launches ----
// launch(blocks, kernel, arguments...): by at most so many blocks of threads.

template <class T, class Launch>
void run(const cpu::AddNorm<T>& a, const Launch& launch) {
  launch(a.rows, norm_rows<T>,
         NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.weight_C, nullptr, a.sum, a.out, nullptr,
                     a.rstd_N});
}
template <class T, class Launch>
void run(const cpu::AddLayerNorm<T>& a, const Launch& launch) {
  launch(a.rows, norm_rows<T>,
         NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.affine_2C, a.affine_2C + a.channels, a.sum,
                     a.out, a.mean_N, a.rstd_N});
}

/// With as many groups as the channels need, of those that there is a kernel for.
template <class T, int groups = 1, class Launch>
void run_norm_backward(const NormRowsBackward<T>& a, float* gradient, const Launch& launch) {
  if constexpr (groups * stride < most_channels) {
    if (a.channels > groups * stride) return run_norm_backward<T, 2 * groups>(a, gradient, launch);
  }
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  const Index width = a.means == nullptr ? a.channels : 2 * a.channels;
  launch(blocks, norm_rows_backward<T, groups>, a);
  launch((width + threads - 1) / threads, sum_columns, a.block_sums, blocks, width, gradient);
}
template <class T, class Launch>
void run(const cpu::AddNormBackward<T>& a, const Launch& launch) {
  run_norm_backward(NormRowsBackward<T>{a.rows, a.channels, a.sum, a.weight_C, a.grad_out, a.grad_sum,
                                        nullptr, a.rstd_N, a.grad_x, a.block_sums},
                    a.weight_gradient_C, launch);
}
template <class T, class Launch>
void run(const cpu::AddLayerNormBackward<T>& a, const Launch& launch) {
  run_norm_backward(NormRowsBackward<T>{a.rows, a.channels, a.sum, a.affine_2C, a.grad_out, a.grad_sum,
                                        a.mean_N, a.rstd_N, a.grad_x, a.block_sums},
                    a.affine_gradient_2C, launch);
}
template <class T, class Launch>
void run(const cpu::SwiGlu<T>& a, const Launch& launch) {
  launch(a.rows, swiglu_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::SwiGluBackward<T>& a, const Launch& launch) {
  launch(a.rows, swiglu_rows_backward<T>, a);
}
template <class T, class Launch>
void run(const cpu::Gelu<T>& a, const Launch& launch) {
  launch(a.rows, gelu_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::GeluBackward<T>& a, const Launch& launch) {
  launch(a.rows, gelu_rows_backward<T>, a);
}
template <class T, class Launch>
void run(const cpu::SoftmaxLoss<T>& a, float* losses_N, const Launch& launch) {
  launch(a.rows, softmax_loss_rows<T>, a, losses_N);
}
