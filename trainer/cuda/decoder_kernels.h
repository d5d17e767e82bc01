#pragma once
// The decoder's element-wise parts on a GPU: what cpu_kernels.h describes, with operands in device memory, on
// a stream (cudaStream_t). They return when the work is submitted, and throw Error(data) where it cannot be.
// Every operand is read and written once or twice, which is what these parts' time goes by on a GPU.

#include "cpu_kernels.h"

namespace isthmus::trainer::cuda {

using cpu::Index;

/// A norm's backward pass adds up its weights' gradients over so many rows at a time, in `block_sums`.
inline constexpr Index rows_at_once = 64;
inline Index row_blocks(Index rows) { return (rows + rows_at_once - 1) / rows_at_once; }
/// The most of a norm whose backward pass is here.
inline constexpr Index max_channels = 8192;

/// The heads of queries and keys as attention wants them, see cpu::SplitHeads; all stay where a token has
/// them: [N, H + 2K, D]. For the shapes that `rotates` names; buffers are aligned to 16 bytes.
template <class T>
struct RotateHeads {
  cpu::Heads at;
  const T *qkv, *norms;  ///< `norms` [2, D], of queries and of keys; null for none
  T* out;
};
template <class T>
struct RotateHeadsBackward {
  cpu::Heads at;
  const T *qkv, *norms;
  const T *grad_q, *grad_k, *grad_v;  ///< [N, H, D], and twice [N, K, D]
  T* grad_qkv;
  float *norms_gradient, *block_sums;  ///< [2, D], and as many for each of row_blocks(N); null without norms
};
inline constexpr Index max_head_dim = 256;
/// Heads of 8 to 256 elements, a power of two, and as many of them as 32 bits count.
inline bool rotates(const cpu::Heads& a) {
  constexpr Index min_head_dim = 8, max_heads = Index{1} << 31;
  const bool fits =
      a.head_dim >= min_head_dim && a.head_dim <= max_head_dim && a.rows() * a.all_heads() < max_heads;
  return fits && (a.head_dim & (a.head_dim - 1)) == 0;
}

/// `Work`: AddNorm, AddLayerNorm, RotateHeads, SwiGlu, Gelu, their backward passes, and ColumnSums.
template <class Work>
void run(const Work& work, void* stream);
/// The loss of each row into losses_N, in place of their sum.
template <class T>
void run(const cpu::SoftmaxLoss<T>& work, float* losses_N, void* stream);

}  // namespace isthmus::trainer::cuda
