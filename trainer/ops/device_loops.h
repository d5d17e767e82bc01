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

/// Runs a kernel on the GPU that has `x`.
template <class Work>
void run_on_gpu([[maybe_unused]] const at::Tensor& x, [[maybe_unused]] const Work& work) {
#ifdef ISTHMUS_WITH_CUDA
  TORCH_CHECK(!x.is_cpu(), "this kernel is for GPUs only");
  cuda::run(work, stream_of(x));
#else
  TORCH_CHECK(false, "this build has loops for CPUs only");
#endif
}

/// Runs a kernel on the device that has `x`.
template <class Work>
void run_on(const at::Tensor& x, const Work& work) {
  if (x.is_cpu()) return cpu::run(work);
  run_on_gpu(x, work);
}

}  // namespace isthmus::trainer
