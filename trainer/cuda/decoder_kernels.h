#pragma once
// The decoder's element-wise parts on a GPU: the operations of cpu_kernels.h with operands in device memory,
// on a stream (cudaStream_t). Functions return once the work is submitted, and throw Error(data) if that
// fails. Every operand is read and written once or twice, which determines the time of these parts on a GPU.

#include "kernels/cpu_kernels.h"

namespace isthmus::trainer::cuda {

using cpu::Index;

/// A norm's backward pass adds up its weights' gradients over this many rows at a time, in `block_sums`.
inline constexpr Index rows_at_once = 64;
inline Index row_blocks(Index rows) { return (rows + rows_at_once - 1) / rows_at_once; }
/// The maximum number of channels for a norm's backward pass.
inline constexpr Index max_channels = 8192;

/// Norms and rotates the heads of queries and keys like cpu::SplitHeads, but all heads stay in the token's
/// order: [N, H + 2K, D]. Only for shapes that `rotates` accepts; buffers are aligned to 16 bytes.
template <class T>
struct RotateHeads {
  cpu::Heads at;
  const T *qkv, *norms;  ///< `norms` [2, D]: weights for queries, then for keys; null without norms
  T* out;
};
template <class T>
struct RotateHeadsBackward {
  cpu::Heads at;
  const T *qkv, *norms;
  const T *grad_q, *grad_k, *grad_v;  ///< [N, H, D], [N, K, D] and [N, K, D]
  T* grad_qkv;
  float *norms_gradient, *block_sums;  ///< [2, D], and the same for each of row_blocks(N); null without norms
};
inline constexpr Index max_head_dim = 256;
/// Whether heads have 8 to 256 elements, a power of two, and their number is below 2^31.
inline bool rotates(const cpu::Heads& a) {
  constexpr Index min_head_dim = 8, max_heads = Index{1} << 31;
  const bool fits =
      a.head_dim >= min_head_dim && a.head_dim <= max_head_dim && a.rows() * a.all_heads() < max_heads;
  return fits && (a.head_dim & (a.head_dim - 1)) == 0;
}

/// `Work`: AddNorm, AddLayerNorm, RotateHeads, SwiGlu, Gelu, their backward passes, and ColumnSums.
template <class Work>
void run(const Work& work, void* stream);
/// Writes the loss of each row to losses_N, instead of returning their sum.
template <class T>
void run(const cpu::SoftmaxLoss<T>& work, float* losses_N, void* stream);

}  // namespace isthmus::trainer::cuda
