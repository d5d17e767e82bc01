#include "isthmus/trainer/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef ISTHMUS_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "driver_files.h"

namespace isthmus::trainer {

namespace {

bool has_bf16_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;  // every CPU with AMX has it too
#else
  return false;
#endif
}

}  // namespace

Hardware probe_hardware(const std::filesystem::path& root) {
  auto found = probe_driver_files(root);
  found.bf16_instructions = has_bf16_instructions();
#ifdef ISTHMUS_WITH_CUDA
  found.built_with_cuda = true;
  found.needed_cuda =
      CUDART_VERSION / 1000 * 1000;  // CUDA's minor versions run on any driver of their major one
  found.lowest_capability = ISTHMUS_LOWEST_CAPABILITY;
  if (cudaDriverGetVersion(&found.driver_cuda) != cudaSuccess) found.driver_cuda = 0;
  // libtorch's own count: it leaves out what it cannot start.
  const auto gpus = torch::cuda::device_count();
  for (int gpu = 0; gpu < static_cast<int>(gpus); ++gpu) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, gpu) != cudaSuccess) break;
    found.gpus.push_back({properties.name, 10 * properties.major + properties.minor});
  }
#endif
  return found;
}

void prepare_process(const TrainerConfig& config) {
  if (config.threads > 0) at::set_num_threads(static_cast<int>(config.threads));
  // Only warned about, not refused, where a kernel has no repeatable form: libtorch asks for an environment
  // variable of cuBLAS then, which is repeatable without it as long as one stream computes.
  at::globalContext().setDeterministicAlgorithms(config.deterministic, /*warn_only=*/true);
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

}  // namespace isthmus::trainer
