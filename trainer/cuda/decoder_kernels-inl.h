// The decoder's element-wise parts on a GPU; cpu_kernels.h defines what each computes. Arithmetic is fp32 for
// every storage type. A block of threads has a row (a warp has one, for norms of few columns and for heads),
// and each thread has the same columns of every row: groups of four neighbours, `stride` elements apart. Sums
// are added in a fixed order, so results are repeatable to the bit.
//
// Included by decoder_kernels.cu, and by a test that runs the kernels' threads one after another on the CPU.
// Intentionally without an include guard.

inline constexpr unsigned threads = 256;
inline constexpr unsigned warp_size = 32;
inline constexpr unsigned warps = threads / warp_size;
inline constexpr unsigned all_lanes = 0xffffffff;
inline constexpr Index group = 4;  ///< neighbouring elements that a thread reads at once
inline constexpr Index stride = threads * group;
inline constexpr Index warp_stride = warp_size * group;
inline constexpr Index max_warp_columns = 1024;  ///< columns that a warp's registers hold

// ---- memory ----

struct alignas(8) FourBf16 {
  std::uint32_t low, high;
};

ISTHMUS_LANES float wide(float x) { return x; }
ISTHMUS_LANES float wide(Bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
/// Rounds to nearest, ties to even. Rounding would turn a GPU's own NaN, 0x7fffffff, into -0.
/// ISTHMUS_TWO_BF16 is the hardware's instruction for two values, if it has one.
ISTHMUS_LANES std::uint32_t bf16_bits(float x) {
#ifdef ISTHMUS_TWO_BF16
  return ISTHMUS_TWO_BF16(x, 0.0F) & 0xffffU;
#else
  const std::uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
#endif
}
ISTHMUS_LANES std::uint32_t two_bf16(float low, float high) {
#ifdef ISTHMUS_TWO_BF16
  return ISTHMUS_TWO_BF16(low, high);
#else
  return bf16_bits(low) | bf16_bits(high) << 16;
#endif
}
/// The value after it was stored and read again.
ISTHMUS_LANES float as_stored(float x, float) { return x; }
ISTHMUS_LANES float as_stored(float x, Bf16) { return __uint_as_float(bf16_bits(x) << 16); }
ISTHMUS_LANES void put(float x, float& out) { out = x; }
ISTHMUS_LANES void put(float x, Bf16& out) { out.bits = static_cast<std::uint16_t>(bf16_bits(x)); }

/// The type of a group in memory.
template <class T>
struct Memory;
template <>
struct Memory<float> {
  using Four = float4;
};
template <>
struct Memory<Bf16> {
  using Four = FourBf16;
};
template <class T>
using Four = typename Memory<T>::Four;

ISTHMUS_LANES void unpack(const float4& got, float (&x)[group]) {
  x[0] = got.x;
  x[1] = got.y;
  x[2] = got.z;
  x[3] = got.w;
}
ISTHMUS_LANES void unpack(const FourBf16& got, float (&x)[group]) {
  x[0] = __uint_as_float(got.low << 16);
  x[1] = __uint_as_float(got.low & 0xffff0000U);
  x[2] = __uint_as_float(got.high << 16);
  x[3] = __uint_as_float(got.high & 0xffff0000U);
}
ISTHMUS_LANES void write_four(const float (&x)[group], float* p) {
  *reinterpret_cast<float4*>(p) = float4{x[0], x[1], x[2], x[3]};
}
ISTHMUS_LANES void write_four(const float (&x)[group], Bf16* p) {
  *reinterpret_cast<FourBf16*>(p) = FourBf16{two_bf16(x[0], x[1]), two_bf16(x[2], x[3])};
}

// A warp waits for what it has read at its first use and at every branch. So kernels with few threads first
// read all that they need, without branches. That requires dense rows: each group of four is at a multiple of
// its size.
template <class T>
bool is_dense(Index channels, std::initializer_list<const T*> pointers) {
  bool dense = channels % group == 0;
  for (const T* p : pointers) dense = dense && reinterpret_cast<std::uintptr_t>(p) % sizeof(Four<T>) == 0;
  return dense;
}
/// The group at `at` of a dense row of n elements; zeros past its end.
template <class T>
ISTHMUS_LANES Four<T> fetch(const T* p, Index n, Index at) {
  return at < n ? *reinterpret_cast<const Four<T>*>(p + at) : Four<T>{};
}
template <class T>
ISTHMUS_LANES void put_dense(const float (&x)[group], T* p, Index n, Index at) {
  if (at < n) write_four(x, p + at);
}

/// The group from `at` on of the n elements at `p`; zeros past their end.
template <class T>
ISTHMUS_LANES void load(const T* p, Index n, Index at, float (&x)[group]) {
  const bool together =
      at + group <= n && reinterpret_cast<std::uintptr_t>(p + at) % (group * sizeof(T)) == 0;
  if (together) return unpack(*reinterpret_cast<const Four<T>*>(p + at), x);
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

/// The sum over each group of `lanes` neighbouring lanes, a power of two. Every lane of the warp calls it.
template <unsigned lanes = warp_size>
ISTHMUS_LANES float over_lanes(float x) {
  for (unsigned apart = lanes / 2; apart > 0; apart /= 2)
    x += __uint_as_float(__shfl_xor_sync(all_lanes, __float_as_uint(x), apart));
  return x;
}
ISTHMUS_LANES unsigned own_warp() { return threadIdx.x / warp_size; }
ISTHMUS_LANES unsigned own_lane() { return threadIdx.x % warp_size; }

/// The same over all threads of a block. Every thread must call it.
template <class Operation>
ISTHMUS_LANES float over_block(float x) {
  __shared__ float of_warp[warps];
  for (unsigned apart = warp_size / 2; apart > 0; apart /= 2)
    x = Operation::of(x, __uint_as_float(__shfl_xor_sync(all_lanes, __float_as_uint(x), apart)));
  __syncthreads();  // all threads have read the previous values
  if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = x;
  __syncthreads();
  float all = of_warp[0];
  for (unsigned w = 1; w < warps; ++w) all = Operation::of(all, of_warp[w]);
  return all;
}

// ---- norms ----

/// One row of AddNorm, or of AddLayerNorm if `means` is not null. Reads back the stored sum, like the
/// backward pass.
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

/// norm_rows with a warp for each row. Rows must be dense.
template <class T, int groups>
__global__ void norm_rows_by_warp(NormRows<T> a) {
  const Index n = a.channels, first = own_lane() * group;
  for (Index row = static_cast<Index>(blockIdx.x) * warps + own_warp(); row < a.rows;
       row += static_cast<Index>(gridDim.x) * warps) {
    Four<T> read[groups], deltas[groups] = {};
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) read[g] = fetch(a.x + row * n, n, first + g * warp_stride);
    if (a.delta != nullptr) {
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) deltas[g] = fetch(a.delta + row * n, n, first + g * warp_stride);
    }
    float x[groups][group];
    float total = 0;
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) {
      float delta[group];
      unpack(read[g], x[g]);
      unpack(deltas[g], delta);
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        x[g][k] = as_stored(x[g][k] + delta[k], T{});
        total += a.means == nullptr ? x[g][k] * x[g][k] : x[g][k];
      }
      if (a.delta != nullptr) put_dense(x[g], a.sum + row * n, n, first + g * warp_stride);
    }
    total = over_lanes(total);
    float mean = 0;
    if (a.means != nullptr) {
      mean = total / static_cast<float>(n);
      total = 0;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) {
          const float off = first + g * warp_stride < n ? x[g][k] - mean : 0;
          total += off * off;
        }
      }
      total = over_lanes(total);
    }
    const float rstd = 1 / sqrtf(total / static_cast<float>(n) + a.eps);
    ISTHMUS_UNROLL
    for (int g = 0; g < groups; ++g) {
      const Index at = first + g * warp_stride;
      float weight[group], bias[group] = {};
      unpack(fetch(a.weight, n, at), weight);
      if (a.bias != nullptr) unpack(fetch(a.bias, n, at), bias);
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) x[g][k] = (x[g][k] - mean) * rstd * weight[k] + bias[k];
      put_dense(x[g], a.out + row * n, n, at);
    }
    if (own_lane() != 0) continue;
    a.rstds[row] = rstd;
    if (a.means != nullptr) a.means[row] = mean;
  }
}

/// The backward pass of norm_rows. Each block of threads takes `rows_at_once` rows and writes their sums for
/// the weight, followed by those for the bias if there are means, to a row of `block_sums`.
template <class T>
struct NormRowsBackward {
  Index rows, channels;
  const T *sum, *weight, *grad_out, *grad_sum;  ///< `grad_sum` may be null
  const float *means, *rstds;                   ///< `means` null: RMSNorm
  T* grad_x;
  float* block_sums;
};

/// Each thread has `groups` groups of columns in registers: at least channels / stride.
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

/// norm_rows_backward with a warp for each row. Rows must be dense; the warps' sums are added in order.
template <class T, int groups>
__global__ void norm_rows_backward_by_warp(NormRowsBackward<T> a) {
  __shared__ float all_weight[max_warp_columns], all_bias[max_warp_columns];
  const Index n = a.channels, first = own_lane() * group;
  const Index width = a.means == nullptr ? n : 2 * n;
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  for (Index block = blockIdx.x; block < blocks; block += gridDim.x) {
    float of_weight[groups][group] = {}, of_bias[groups][group] = {};
    const Index begin = block * rows_at_once;
    const Index end = begin + rows_at_once < a.rows ? begin + rows_at_once : a.rows;
    for (Index row = begin + own_warp(); row < end; row += warps) {
      Four<T> sums[groups], grads[groups], also[groups] = {};
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        sums[g] = fetch(a.sum + row * n, n, first + g * warp_stride);
        grads[g] = fetch(a.grad_out + row * n, n, first + g * warp_stride);
      }
      if (a.grad_sum != nullptr) {
        ISTHMUS_UNROLL
        for (int g = 0; g < groups; ++g) also[g] = fetch(a.grad_sum + row * n, n, first + g * warp_stride);
      }
      const float mean = a.means == nullptr ? 0 : a.means[row], rstd = a.rstds[row];
      float along = 0, level = 0;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        float normed[group], grad[group], weight[group];
        unpack(sums[g], normed);
        unpack(grads[g], grad);
        unpack(fetch(a.weight, n, first + g * warp_stride), weight);
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) {  // past the end grad is 0
          normed[k] = (normed[k] - mean) * rstd;
          of_weight[g][k] += grad[k] * normed[k];
          of_bias[g][k] += grad[k];
          along += grad[k] * weight[k] * normed[k];
          level += grad[k] * weight[k];
        }
      }
      along = over_lanes(along) / static_cast<float>(n);
      level = a.means == nullptr ? 0 : over_lanes(level) / static_cast<float>(n);
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        float normed[group], grad[group], weight[group], x[group];
        unpack(sums[g], normed);
        unpack(grads[g], grad);
        unpack(also[g], x);
        unpack(fetch(a.weight, n, first + g * warp_stride), weight);
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k)
          x[k] += rstd * (grad[k] * weight[k] - level - (normed[k] - mean) * rstd * along);
        put_dense(x, a.grad_x + row * n, n, first + g * warp_stride);
      }
    }
    for (unsigned w = 0; w < warps; ++w) {
      __syncthreads();
      if (own_warp() != w) continue;
      ISTHMUS_UNROLL
      for (int g = 0; g < groups; ++g) {
        ISTHMUS_UNROLL
        for (Index k = 0; k < group; ++k) {
          const Index at = own_lane() * group + g * warp_stride + k;
          all_weight[at] = (w == 0 ? 0 : all_weight[at]) + of_weight[g][k];
          all_bias[at] = (w == 0 ? 0 : all_bias[at]) + of_bias[g][k];
        }
      }
    }
    __syncthreads();
    for (Index c = threadIdx.x; c < n; c += threads) {
      a.block_sums[block * width + c] = all_weight[c];
      if (a.means != nullptr) a.block_sums[block * width + n + c] = all_bias[c];
    }
    __syncthreads();  // before the next block's sums
  }
}

// ---- sums over rows ----

/// Writes a row of `block_sums` for each `rows_at_once` rows.
template <class T, bool dense>
__global__ void sum_row_blocks(cpu::ColumnSums<T> a) {
  __shared__ float of_warp[warps][warp_stride];
  const Index across = (a.width + warp_stride - 1) / warp_stride;
  const Index tiles = across * ((a.rows + rows_at_once - 1) / rows_at_once);
  for (Index tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Index block = tile / across;
    const Index begin = block * rows_at_once;
    const Index end = begin + rows_at_once < a.rows ? begin + rows_at_once : a.rows;
    const Index at = tile % across * warp_stride + own_lane() * group;
    constexpr int own_rows = rows_at_once / warps;
    float x[own_rows][group], sum[group] = {};
    ISTHMUS_UNROLL
    for (int i = 0; i < own_rows; ++i) {
      const Index row = begin + own_warp() + i * warps;
      const Index there = row < end ? a.width : 0;
      if constexpr (dense)
        unpack(fetch(a.x + row * a.width, there, at), x[i]);
      else
        load(a.x + row * a.width, there, at, x[i]);
    }
    ISTHMUS_UNROLL
    for (int i = 0; i < own_rows; ++i) {
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) sum[k] += x[i][k];
    }
    ISTHMUS_UNROLL
    for (Index k = 0; k < group; ++k) of_warp[own_warp()][own_lane() * group + k] = sum[k];
    __syncthreads();
    const Index own = tile % across * warp_stride + threadIdx.x;
    if (threadIdx.x < warp_stride && own < a.width) {
      float all = 0;
      for (unsigned w = 0; w < warps; ++w) all += of_warp[w][threadIdx.x];
      a.block_sums[block * a.width + own] = all;
    }
    __syncthreads();
  }
}

/// out[c] = the sum of column c: eight interleaved sums, which are then added in order.
__global__ void sum_columns(const float* rows, Index count, Index width, float* out) {
  __shared__ float of_warp[warps][warp_size];
  for (Index begin = static_cast<Index>(blockIdx.x) * warp_size; begin < width;
       begin += static_cast<Index>(gridDim.x) * warp_size) {
    const Index c = begin + own_lane();
    float sum = 0;
    for (Index r = own_warp(); r < count && c < width; r += warps) sum += rows[r * width + c];
    of_warp[own_warp()][own_lane()] = sum;
    __syncthreads();
    if (own_warp() == 0 && c < width) {
      for (unsigned w = 1; w < warps; ++w) sum += of_warp[w][own_lane()];
      out[c] = sum;
    }
    __syncthreads();
  }
}

// ---- heads ----

ISTHMUS_LANES Index tokens_of(const cpu::Heads& a) { return a.sequences * a.length; }
ISTHMUS_LANES Index heads_of(const cpu::Heads& a) { return a.heads + 2 * a.kv_heads; }

/// One lane's part of a head: a group of its first half, and the elements of the second half that are rotated
/// with it.
struct Halves {
  float first[group], second[group];
};
template <class T>
ISTHMUS_LANES Halves read_halves(const T* head, Index half, Index at, bool exists) {
  const Index n = exists ? half : 0;
  const auto first = fetch(head, n, at), second = fetch(head + half, n, at);
  Halves x;
  unpack(first, x.first);
  unpack(second, x.second);
  return x;
}
template <class T>
ISTHMUS_LANES void write_halves(const Halves& x, T* head, Index half, Index at, bool exists) {
  put_dense(x.first, head, exists ? half : 0, at);
  put_dense(x.second, head + half, exists ? half : 0, at);
}
ISTHMUS_LANES float squares_of(const Halves& x) {
  float sum = 0;
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) sum += x.first[k] * x.first[k] + x.second[k] * x.second[k];
  return sum;
}
/// Rotates by the position's angles, backwards if `back`.
ISTHMUS_LANES void turn(const cpu::Heads& a, unsigned position, Index at, bool back, Halves& x) {
  const Index half = a.head_dim / 2;
  float cos[group], sin[group];
  unpack(fetch(a.cos + position * half, half, at), cos);
  unpack(fetch(a.sin + position * half, half, at), sin);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) {
    const float sine = back ? -sin[k] : sin[k], before = x.first[k];
    x.first[k] = before * cos[k] - x.second[k] * sine;
    x.second[k] = x.second[k] * cos[k] + before * sine;
  }
}

/// `lanes` neighbouring lanes have one head of a token: head_dim is 8 * lanes.
template <class T, int lanes>
__global__ void rotate_heads(RotateHeads<T> a) {
  const unsigned all = heads_of(a.at), items = tokens_of(a.at) * all, length = a.at.length;
  constexpr unsigned at_once = threads / lanes;
  const Index dim = a.at.head_dim, half = dim / 2, at = own_lane() % lanes * group;
  for (unsigned begin = blockIdx.x * at_once; begin < items; begin += gridDim.x * at_once) {
    const unsigned item = begin + threadIdx.x / lanes, head = item % all;
    const bool exists = item < items, is_value = head >= a.at.heads + a.at.kv_heads;
    auto x = read_halves(a.qkv + item * dim, half, at, exists);
    if (a.norms != nullptr) {
      const float mean = over_lanes<lanes>(squares_of(x)) / static_cast<float>(dim);
      const float rstd = is_value ? 1 : 1 / sqrtf(mean + a.at.eps);
      const auto weight = read_halves(a.norms + (head < a.at.heads ? 0 : dim), half, at, exists);
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        x.first[k] *= is_value ? 1 : rstd * weight.first[k];
        x.second[k] *= is_value ? 1 : rstd * weight.second[k];
      }
    }
    if (a.at.cos != nullptr && !is_value) turn(a.at, item / all % length, at, false, x);
    write_halves(x, a.out + item * dim, half, at, exists);
  }
}

/// Each block of threads has `rows_at_once` tokens.
template <class T, int lanes>
__global__ void rotate_heads_backward(RotateHeadsBackward<T> a) {
  __shared__ float sums[2][max_head_dim];
  constexpr unsigned at_once = threads / lanes;
  const unsigned all = heads_of(a.at), items = tokens_of(a.at) * all, length = a.at.length;
  const unsigned queries = a.at.heads, kinds = a.at.kv_heads,
                 blocks = (tokens_of(a.at) + rows_at_once - 1) / rows_at_once;
  const Index dim = a.at.head_dim, half = dim / 2, at = own_lane() % lanes * group;
  for (unsigned block = blockIdx.x; block < blocks; block += gridDim.x) {
    const unsigned end = (block + 1) * rows_at_once * all < items ? (block + 1) * rows_at_once * all : items;
    Halves of_queries = {}, of_keys = {};
    for (unsigned begin = block * rows_at_once * all; begin < end; begin += at_once) {
      const unsigned item = begin + threadIdx.x / lanes, token = item / all, head = item % all;
      const bool exists = item < end, is_query = head < queries, is_value = head >= queries + kinds;
      const T* grad = is_query   ? a.grad_q + (token * queries + head) * dim
                      : is_value ? a.grad_v + (token * kinds + head - queries - kinds) * dim
                                 : a.grad_k + (token * kinds + head - queries) * dim;
      auto g = read_halves(grad, half, at, exists);
      if (a.norms == nullptr) {
        if (a.at.cos != nullptr && !is_value) turn(a.at, token % length, at, true, g);
        write_halves(g, a.grad_qkv + item * dim, half, at, exists);
        continue;
      }
      auto x = read_halves(a.qkv + item * dim, half, at, exists);
      const auto weight = read_halves(a.norms + (is_query ? 0 : dim), half, at, exists);
      if (a.at.cos != nullptr && !is_value) turn(a.at, token % length, at, true, g);
      const float rstd = 1 / sqrtf(over_lanes<lanes>(squares_of(x)) / static_cast<float>(dim) + a.at.eps);
      float along = 0;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        x.first[k] *= rstd;
        x.second[k] *= rstd;
        along += g.first[k] * weight.first[k] * x.first[k] + g.second[k] * weight.second[k] * x.second[k];
      }
      along = over_lanes<lanes>(along) / static_cast<float>(dim);
      const float query = is_query ? 1 : 0, key = is_query || is_value ? 0 : 1;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        of_queries.first[k] += query * g.first[k] * x.first[k];
        of_queries.second[k] += query * g.second[k] * x.second[k];
        of_keys.first[k] += key * g.first[k] * x.first[k];
        of_keys.second[k] += key * g.second[k] * x.second[k];
        if (is_value) continue;
        g.first[k] = rstd * (g.first[k] * weight.first[k] - x.first[k] * along);
        g.second[k] = rstd * (g.second[k] * weight.second[k] - x.second[k] * along);
      }
      write_halves(g, a.grad_qkv + item * dim, half, at, exists);
    }
    if (a.norms == nullptr) continue;
    for (unsigned turn = 0; turn < at_once; ++turn) {
      __syncthreads();
      if (threadIdx.x / lanes != turn) continue;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        const auto add = [&](float& sum, float x) { sum = (turn == 0 ? 0 : sum) + x; };
        add(sums[0][at + k], of_queries.first[k]);
        add(sums[0][half + at + k], of_queries.second[k]);
        add(sums[1][at + k], of_keys.first[k]);
        add(sums[1][half + at + k], of_keys.second[k]);
      }
    }
    __syncthreads();
    for (Index c = threadIdx.x; c < 2 * dim; c += threads)
      a.block_sums[block * 2 * dim + c] = c < dim ? sums[0][c] : sums[1][c - dim];
    __syncthreads();  // before the next block's sums
  }
}

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

// ---- launches ----
// launch(blocks, kernel, arguments...) starts at most `blocks` blocks of threads.

/// Calls `run` with the number of groups of columns that a warp for each row needs; false if the row is too
/// wide.
template <int groups = 2, class Run>
bool by_warp(Index channels, const Run& run) {
  if (channels <= groups * warp_stride) {
    run(std::integral_constant<int, groups>());
    return true;
  }
  if constexpr (groups * warp_stride < max_warp_columns) return by_warp<groups + 2>(channels, run);
  return false;
}

template <class T, class Launch>
void run_norm(const NormRows<T>& a, const Launch& launch) {
  const bool dense = is_dense<T>(a.channels, {a.x, a.delta, a.weight, a.bias, a.sum, a.out});
  const bool done = dense && by_warp(a.channels, [&](auto groups) {
                      launch((a.rows + warps - 1) / warps, norm_rows_by_warp<T, groups>, a);
                    });
  if (!done) launch(a.rows, norm_rows<T>, a);
}
template <class T, class Launch>
void run(const cpu::AddNorm<T>& a, const Launch& launch) {
  run_norm(NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.weight_C, nullptr, a.sum, a.out, nullptr,
                       a.rstd_N},
           launch);
}
template <class T, class Launch>
void run(const cpu::AddLayerNorm<T>& a, const Launch& launch) {
  run_norm(NormRows<T>{a.rows, a.channels, a.eps, a.x, a.delta, a.affine_2C, a.affine_2C + a.channels, a.sum,
                       a.out, a.mean_N, a.rstd_N},
           launch);
}

template <class Launch>
void run_sum_columns(const float* rows, Index count, Index width, float* out, const Launch& launch) {
  launch((width + warp_size - 1) / warp_size, sum_columns, rows, count, width, out);
}
template <class T, class Launch>
void run(const cpu::ColumnSums<T>& a, const Launch& launch) {
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  const Index tiles = blocks * ((a.width + warp_stride - 1) / warp_stride);
  if (is_dense<T>(a.width, {a.x}))
    launch(tiles, sum_row_blocks<T, true>, a);
  else
    launch(tiles, sum_row_blocks<T, false>, a);
  run_sum_columns(a.block_sums, blocks, a.width, a.sums, launch);
}

/// Calls `run` with the number of lanes for a head of `head_dim` elements.
template <int lanes = max_head_dim / 2 / group, class Run>
void by_lanes(Index head_dim, const Run& run) {
  if constexpr (lanes > 1) {
    if (head_dim < 2 * lanes * group) return by_lanes<lanes / 2>(head_dim, run);
  }
  run(std::integral_constant<int, lanes>());
}
template <class T, class Launch>
void run(const RotateHeads<T>& a, const Launch& launch) {
  by_lanes(a.at.head_dim, [&](auto lanes) {
    constexpr Index at_once = threads / lanes;
    launch((a.at.rows() * a.at.all_heads() + at_once - 1) / at_once, rotate_heads<T, lanes>, a);
  });
}
template <class T, class Launch>
void run(const RotateHeadsBackward<T>& a, const Launch& launch) {
  const Index blocks = (a.at.rows() + rows_at_once - 1) / rows_at_once;
  by_lanes(a.at.head_dim, [&](auto lanes) { launch(blocks, rotate_heads_backward<T, lanes>, a); });
  if (a.norms != nullptr) run_sum_columns(a.block_sums, blocks, 2 * a.at.head_dim, a.norms_gradient, launch);
}

/// Uses a block of threads for each row, and as many groups as the channels need.
template <int groups = 1, class T, class Launch>
void run_wide_norm_backward(const NormRowsBackward<T>& a, Index blocks, const Launch& launch) {
  if constexpr (groups * stride < max_channels) {
    if (a.channels > groups * stride) return run_wide_norm_backward<2 * groups>(a, blocks, launch);
  }
  launch(blocks, norm_rows_backward<T, groups>, a);
}
template <class T, class Launch>
void run_norm_backward(const NormRowsBackward<T>& a, float* gradient, const Launch& launch) {
  const Index blocks = (a.rows + rows_at_once - 1) / rows_at_once;
  const bool dense = is_dense<T>(a.channels, {a.sum, a.weight, a.grad_out, a.grad_sum, a.grad_x});
  const bool done = dense && by_warp(a.channels, [&](auto groups) {
                      launch(blocks, norm_rows_backward_by_warp<T, groups>, a);
                    });
  if (!done) run_wide_norm_backward(a, blocks, launch);
  run_sum_columns(a.block_sums, blocks, a.means == nullptr ? a.channels : 2 * a.channels, gradient, launch);
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
