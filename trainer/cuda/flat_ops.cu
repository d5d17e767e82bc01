#include <cuda_runtime.h>

#include <cmath>
#include <string>

#include "flat_ops.h"
#include "isthmus/base/error.h"

namespace isthmus::trainer::cuda {
namespace {

constexpr unsigned norm_block = 4096;  // as in adamw.cpp: part of the definition of the norm
constexpr unsigned norm_lanes = 16;
constexpr unsigned threads = 256;

struct Bf16Bits {
  std::uint16_t bits;
};
__device__ float widen(float x) { return x; }
__device__ float widen(Bf16Bits x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

/// Rounds to nearest, ties to even. Rounding would turn a GPU's own NaN, 0x7fffffff, into -0.
__device__ std::uint16_t to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// One block of threads for norm_lanes blocks of elements; each thread adds up one lane of one block.
template <class G>
__global__ void sum_squares(const G* g, std::uint64_t size, double* block_sums) {
  __shared__ double lanes[norm_lanes][norm_lanes];
  const unsigned lane = threadIdx.x % norm_lanes;
  const unsigned local = threadIdx.x / norm_lanes;
  const std::uint64_t block = static_cast<std::uint64_t>(blockIdx.x) * norm_lanes + local;
  const std::uint64_t begin = block * norm_block;
  const std::uint64_t end = begin + norm_block < size ? begin + norm_block : size;
  double sum = 0;
  for (std::uint64_t i = begin + lane; i < end; i += norm_lanes) {
    const double x = widen(g[i]);
    sum = __dadd_rn(sum, __dmul_rn(x, x));
  }
  lanes[local][lane] = sum;
  __syncthreads();
  if (lane != 0 || begin >= size) return;
  double total = 0;
  for (const double part : lanes[local]) total = __dadd_rn(total, part);
  block_sums[block] = total;
}

template <class G>
__global__ void update(AdamWStep s, bool decay, std::uint64_t size, const G* g, float* p, float* m, float* v,
                       std::uint16_t* twin) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    const float x = __fmul_rn(s.clip_scale, widen(g[i]));
    const float mean = __fadd_rn(__fmul_rn(s.beta1, m[i]), __fmul_rn(s.one_minus_beta1, x));
    const float square = __fadd_rn(__fmul_rn(s.beta2, v[i]), __fmul_rn(s.one_minus_beta2, __fmul_rn(x, x)));
    const float kept = decay ? __fmul_rn(s.keep, p[i]) : p[i];
    const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(square, s.scale_v)), s.eps);
    const float moved = __fsub_rn(kept, __fmul_rn(s.rate, __fdiv_rn(mean, root)));
    m[i] = mean;
    v[i] = square;
    p[i] = moved;
    if (twin != nullptr) twin[i] = to_bf16(moved);
  }
}

/// Like outer_sync::mixed (state_digest.h): the sum has the same value in any order.
__device__ unsigned long long mixed(std::uint64_t index, std::uint32_t bits) {
  std::uint64_t z = ((index << 32U) | bits) + 0x9e3779b97f4a7c15ULL * (index + 1);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

__global__ void sum_mixed(const float* values, std::uint64_t size, unsigned long long* sum) {
  __shared__ unsigned long long block_sum;
  if (threadIdx.x == 0) block_sum = 0;
  __syncthreads();
  unsigned long long own = 0;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    own += mixed(i, __float_as_uint(values[i]));
  }
  atomicAdd(&block_sum, own);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, block_sum);
}

__global__ void round_all(const float* from, std::uint16_t* to, std::uint64_t size) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    to[i] = to_bf16(from[i]);
  }
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw Error(ErrorKind::data, std::string(what) + " on the GPU failed: " + cudaGetErrorString(status));
  }
}

unsigned grid(std::uint64_t size) {
  const std::uint64_t blocks = (size + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 4096 ? blocks : 4096);
}

template <class G>
void launch_update(const AdamWStep& step, const DecaySegment& segment, const AdamWPointers& at,
                   cudaStream_t stream) {
  const auto begin = segment.range.begin;
  update<<<grid(segment.range.size), threads, 0, stream>>>(
      step, segment.decay, segment.range.size, static_cast<const G*>(at.gradient) + begin,
      at.parameters + begin, at.first_moment + begin, at.second_moment + begin,
      at.twin == nullptr ? nullptr : at.twin + begin);
}

}  // namespace

double gradient_norm(const void* gradient, GradientType type, std::uint64_t size, double* block_sums,
                     double* host_sums, void* stream_pointer) {
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  const std::uint64_t blocks = (size + norm_block - 1) / norm_block;
  const auto grid_blocks = static_cast<unsigned>((blocks + norm_lanes - 1) / norm_lanes);
  if (type == GradientType::fp32) {
    sum_squares<<<grid_blocks, norm_lanes * norm_lanes, 0, stream>>>(static_cast<const float*>(gradient),
                                                                     size, block_sums);
  } else {
    sum_squares<<<grid_blocks, norm_lanes * norm_lanes, 0, stream>>>(static_cast<const Bf16Bits*>(gradient),
                                                                     size, block_sums);
  }
  check(cudaGetLastError(), "the gradient's norm");
  check(cudaMemcpyAsync(host_sums, block_sums, blocks * sizeof(double), cudaMemcpyDeviceToHost, stream),
        "the gradient's norm");
  check(cudaStreamSynchronize(stream), "the gradient's norm");
  double sum = 0;
  for (std::uint64_t b = 0; b < blocks; ++b) sum += host_sums[b];
  return std::sqrt(sum);
}

void adamw(const AdamWStep& step, const DecaySegment& segment, const AdamWPointers& at,
           void* stream_pointer) {
  const auto stream = static_cast<cudaStream_t>(stream_pointer);
  if (at.type == GradientType::fp32) {
    launch_update<float>(step, segment, at, stream);
  } else {
    launch_update<Bf16Bits>(step, segment, at, stream);
  }
  check(cudaGetLastError(), "AdamW");
}

void add_digest(const float* values, std::uint64_t size, std::uint64_t* sum, void* stream_pointer) {
  if (size == 0) return;
  sum_mixed<<<grid(size), threads, 0, static_cast<cudaStream_t>(stream_pointer)>>>(
      values, size, reinterpret_cast<unsigned long long*>(sum));
  check(cudaGetLastError(), "a digest");
}

void round_to_bf16(const float* from, std::uint16_t* to, std::uint64_t size, void* stream) {
  if (size == 0) return;
  round_all<<<grid(size), threads, 0, static_cast<cudaStream_t>(stream)>>>(from, to, size);
  check(cudaGetLastError(), "rounding to bf16");
}

}  // namespace isthmus::trainer::cuda
