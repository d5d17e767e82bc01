#include "decoder_kernels.h"

#include <cuda_runtime.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "isthmus/base/error.h"

#define ISTHMUS_LANES __device__ __forceinline__
#define ISTHMUS_UNROLL _Pragma("unroll")
#define ISTHMUS_FAST_EXP __expf
#define ISTHMUS_TWO_BF16 two_bf16_of_hardware

namespace isthmus::trainer::cuda {
namespace {

/// Needs compute capability 8.0, the lowest that this code is built for.
__device__ __forceinline__ std::uint32_t two_bf16_of_hardware(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

#include "decoder_kernels-inl.h"

struct Launcher {
  cudaStream_t stream;
  template <class... Parameters, class... Arguments>
  void operator()(Index blocks, void (*kernel)(Parameters...), const Arguments&... arguments) const {
    constexpr Index max_blocks = 65535;
    if (blocks == 0) return;
    kernel<<<static_cast<unsigned>(blocks < max_blocks ? blocks : max_blocks), threads, 0, stream>>>(
        arguments...);
    const auto status = cudaGetLastError();
    if (status == cudaSuccess) return;
    throw Error(ErrorKind::data,
                std::string("cannot launch a kernel of the decoder: ") + cudaGetErrorString(status));
  }
};

}  // namespace

template <class Work>
void run(const Work& work, void* stream) {
  run(work, Launcher{static_cast<cudaStream_t>(stream)});
}
template <class T>
void run(const cpu::SoftmaxLoss<T>& work, float* losses_N, void* stream) {
  run(work, losses_N, Launcher{static_cast<cudaStream_t>(stream)});
}

template void run(const cpu::AddNorm<float>&, void*);
template void run(const cpu::AddNorm<Bf16>&, void*);
template void run(const cpu::AddNormBackward<float>&, void*);
template void run(const cpu::AddNormBackward<Bf16>&, void*);
template void run(const cpu::AddLayerNorm<float>&, void*);
template void run(const cpu::AddLayerNorm<Bf16>&, void*);
template void run(const cpu::AddLayerNormBackward<float>&, void*);
template void run(const cpu::AddLayerNormBackward<Bf16>&, void*);
template void run(const cpu::SwiGlu<float>&, void*);
template void run(const cpu::SwiGlu<Bf16>&, void*);
template void run(const cpu::SwiGluBackward<float>&, void*);
template void run(const cpu::SwiGluBackward<Bf16>&, void*);
template void run(const cpu::Gelu<float>&, void*);
template void run(const cpu::Gelu<Bf16>&, void*);
template void run(const cpu::GeluBackward<float>&, void*);
template void run(const cpu::GeluBackward<Bf16>&, void*);
template void run(const RotateHeads<float>&, void*);
template void run(const RotateHeads<Bf16>&, void*);
template void run(const RotateHeadsBackward<float>&, void*);
template void run(const RotateHeadsBackward<Bf16>&, void*);
template void run(const cpu::ColumnSums<float>&, void*);
template void run(const cpu::ColumnSums<Bf16>&, void*);
template void run(const cpu::SoftmaxLoss<float>&, float*, void*);
template void run(const cpu::SoftmaxLoss<Bf16>&, float*, void*);

}  // namespace isthmus::trainer::cuda
