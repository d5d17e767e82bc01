#pragma once
// Where a replica computes, decided once at the start.

#include <cstdint>
#include <filesystem>
#include <string>

#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

enum class Device : std::uint8_t { cpu, cuda };
enum class Precision : std::uint8_t { fp32, bf16 };
[[nodiscard]] std::string_view to_string(Device device);
[[nodiscard]] std::string_view to_string(Precision precision);

/// What there is to choose from.
struct Hardware {
  bool built_with_cuda = false;
  std::int64_t usable_gpus = 0;  ///< that libtorch sees
  bool nvidia_gpu = false;       ///< the machine has one, whether this build can use it or not
  bool bf16_instructions = false;
};
/// `root` stands before the probed paths (/dev/nvidia0, /proc/driver/nvidia/gpus).
[[nodiscard]] Hardware probe_hardware(const std::filesystem::path& root = "/");

/// `auto` is cuda where the build has CUDA and libtorch sees a GPU, else cpu. Throws Error(config) for `cuda`
/// where there is none, and for `auto` where an NVIDIA GPU would lie idle: a CPU run there must be asked for.
[[nodiscard]] Device choose_device(const DeviceConfig& config, const Hardware& hardware);

/// `auto` is bf16 on a GPU and on a CPU with AVX512-BF16 or AMX instructions, else fp32: without them
/// libtorch emulates bf16. (A step of 0.9 M parameters on 32 x 128 tokens takes 0.10 s in bf16 and 0.29 s in
/// fp32 on one AMD core with AVX512-BF16.)
[[nodiscard]] Precision choose_precision(const InnerConfig& config, Device device, const Hardware& hardware);

/// Threads of libtorch's and this folder's CPU loops, for the whole process; 0 leaves them as they are.
/// `deterministic` makes libtorch choose repeatable CUDA kernels. Memory that tensors free is kept for the
/// next step instead of being returned to the system: every step allocates the same sizes, and fresh pages
/// cost more than the arithmetic on them.
void prepare_process(const TrainerConfig& config);

}  // namespace isthmus::trainer
