// Norms, forward and backward, and sums over rows. Included by decoder_kernels-inl.h.

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
