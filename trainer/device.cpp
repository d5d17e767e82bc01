#include "isthmus/trainer/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/cuda.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "isthmus/base/error.h"

namespace isthmus::trainer {

std::string_view to_string(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }
std::string_view to_string(Precision precision) { return precision == Precision::fp32 ? "fp32" : "bf16"; }

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
  Hardware found;
#ifdef ISTHMUS_WITH_CUDA
  found.built_with_cuda = true;
  found.usable_gpus = static_cast<std::int64_t>(torch::cuda::device_count());
#endif
  std::error_code ignored;  // what cannot be looked at is not there
  found.nvidia_gpu = std::filesystem::exists(root / "dev/nvidia0", ignored) ||
                     std::filesystem::exists(root / "proc/driver/nvidia/gpus", ignored);
  found.bf16_instructions = has_bf16_instructions();
  return found;
}

Device choose_device(const DeviceConfig& config, const Hardware& hardware) {
  if (config.device == "cpu") return Device::cpu;
  if (hardware.built_with_cuda && hardware.usable_gpus > 0) return Device::cuda;
  const std::string reason =
      hardware.built_with_cuda ? "libtorch can use no GPU here" : "this build has no CUDA";
  if (config.device == "cuda") throw Error(ErrorKind::config, "device is cuda, but " + reason);
  if (hardware.nvidia_gpu) {
    throw Error(ErrorKind::config, "this machine has an NVIDIA GPU, but " + reason +
                                       "; say `device: cpu` to train on the CPU all the same");
  }
  return Device::cpu;
}

Precision choose_precision(const InnerConfig& config, Device device, const Hardware& hardware) {
  if (config.precision == "fp32") return Precision::fp32;
  if (config.precision == "bf16") return Precision::bf16;
  return device == Device::cuda || hardware.bf16_instructions ? Precision::bf16 : Precision::fp32;
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
