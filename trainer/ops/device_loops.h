#pragma once
// Runs the decoder's element-wise parts by the loops of the device that has their operands: cpu_kernels.h, or
// cuda/decoder_kernels.h on the current stream.

#include <ATen/core/Tensor.h>

#include "cuda/decoder_kernels.h"
#include "ops/cpu_tensor.h"

#ifdef ISTHMUS_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace isthmus::trainer {

/// The stream that libtorch uses for `x`; null on a CPU.
inline void* stream_of([[maybe_unused]] const at::Tensor& x) {
#ifdef ISTHMUS_WITH_CUDA
  if (!x.is_cpu()) return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
#endif
  return nullptr;
}

/// Calls `on_cpu(work)`, or does the same on the GPU that has `x`.
template <class Work, class OnCpu>
void run_on(const at::Tensor& x, const Work& work, const OnCpu& on_cpu) {
#ifdef ISTHMUS_WITH_CUDA
  if (!x.is_cpu()) return cuda::run(work, stream_of(x));
#endif
  TORCH_CHECK(x.is_cpu(), "this build has loops for CPUs only");
  on_cpu(work);
}

}  // namespace isthmus::trainer
