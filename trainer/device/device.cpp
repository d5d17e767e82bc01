#include "isthmus/trainer/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#ifdef ISTHMUS_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "device/driver_files.h"

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
      CUDART_VERSION / 1000 * 1000;  // any driver of the same major version runs all minor versions
  found.code_for = ISTHMUS_CODE_FOR;
  if (cudaDriverGetVersion(&found.driver_cuda) != cudaSuccess) found.driver_cuda = 0;
  // libtorch's own count, which leaves out GPUs that it cannot use.
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
  // libtorch refuses cuBLAS without this setting, and cuBLAS reads it only from the environment; it is
  // Hopper's default size.
  if (config.deterministic) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  // Not warn_only: libtorch would then keep attention's backward pass, which adds in any order.
  at::globalContext().setDeterministicAlgorithms(config.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

int threads_in_use() { return at::get_num_threads(); }

std::string instructions_in_use() { return at::get_cpu_capability(); }

std::filesystem::path torch_in_use() {
  Dl_info library = {};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &library) == 0 || library.dli_fname == nullptr)
    return {};
  return std::filesystem::path(library.dli_fname).parent_path();
}

std::uint64_t peak_gpu_bytes() {
#ifdef ISTHMUS_WITH_CUDA
  if (torch::cuda::is_available()) {
    using c10::CachingAllocator::StatType;
    // Not by c10::cuda: this library must have no variable of the CUDA libraries, which may not be loaded.
    const auto stats = at::accelerator::getDeviceStats(0);
    return static_cast<std::uint64_t>(
        stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
  }
#endif
  return 0;
}

}  // namespace isthmus::trainer
