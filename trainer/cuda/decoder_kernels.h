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
inline constexpr Index most_channels = 16384;

/// `Work`: AddNorm, AddLayerNorm, their backward passes, SwiGlu, Gelu and theirs.
template <class Work>
void run(const Work& work, void* stream);
/// The loss of each row into losses_N, in place of their sum.
template <class T>
void run(const cpu::SoftmaxLoss<T>& work, float* losses_N, void* stream);

}  // namespace isthmus::trainer::cuda
