#pragma once
// Decides where a replica computes, once at the start.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

enum class Device : std::uint8_t { cpu, cuda };
enum class Precision : std::uint8_t { fp32, bf16 };
[[nodiscard]] std::string_view to_string(Device device);
[[nodiscard]] std::string_view to_string(Precision precision);

/// A GPU as the driver describes it.
struct Gpu {
  std::string name;    ///< "NVIDIA H100 80GB HBM3"
  int capability = 0;  ///< compute capability, 10 * major + minor: 90; 0 is unknown
};

/// Facts about this machine and this build, from which choose_device and choose_precision decide.
struct Hardware {
  bool built_with_cuda = false;
  bool nvidia_gpu = false;  ///< whether the machine has one, even if this build cannot use it
  bool bf16_instructions = false;
  std::string nvidia_name;  ///< name of that GPU, from the driver's files; may be empty
  std::string driver;       ///< version of the NVIDIA driver, "580.65.06"; empty if none is loaded
  int driver_cuda = 0;      ///< newest CUDA that the driver supports, 1000 * major + 10 * minor; 0: no driver
  int needed_cuda = 0;      ///< CUDA that the build needs, in the same form
  std::string code_for;     ///< architectures that the build has code for, in the form that has_code_for
                            ///< takes
  std::vector<Gpu> gpus;    ///< GPUs that libtorch sees, by number

  /// Number of GPUs, from number 0 on, that this build can compute on.
  [[nodiscard]] std::int64_t usable_gpus() const;
};
/// Whether code for `code_for` (CMAKE_CUDA_ARCHITECTURES with commas: "80-real,90") runs on a GPU of this
/// compute capability. Machine code (-real) runs on the same major version from its minor version on, PTX
/// (-virtual) on all versions from its own on; a plain number is both, and `a` is for that very capability.
/// Source: nvcc's manual, "GPU Compilation".
[[nodiscard]] bool has_code_for(std::string_view code_for, int capability);

/// `root` is put in front of the probed paths (/dev/nvidia0, /proc/driver/nvidia).
[[nodiscard]] Hardware probe_hardware(const std::filesystem::path& root = "/");

/// `auto` is cuda if this build can use GPU 0, else cpu. Throws Error(config) for `cuda` if it cannot, and
/// for `auto` if an NVIDIA GPU would be idle: training on the CPU must then be requested. The message names
/// the GPU and the driver, what this build needs and what to do.
[[nodiscard]] Device choose_device(const DeviceConfig& config, const Hardware& hardware);

/// `auto` is bf16 on a GPU and on a CPU with AVX512-BF16 or AMX instructions, else fp32, since libtorch
/// emulates bf16 without them.
[[nodiscard]] Precision choose_precision(const InnerConfig& config, Device device, const Hardware& hardware);

/// Sets up the whole process: the number of threads of libtorch's and this folder's CPU loops (0 leaves it
/// unchanged); with `deterministic`, repeatable CUDA kernels. Freed tensor memory is kept for the next step
/// instead of being returned to the system: every step allocates the same sizes, and fresh pages cost more
/// than the arithmetic on them.
void prepare_process(const TrainerConfig& config);

/// The folder of the libtorch that this process has loaded, for logs. Empty if unknown.
[[nodiscard]] std::filesystem::path torch_in_use();

/// Threads that libtorch and this folder's CPU loops use, and the instructions that libtorch has chosen
/// ("AVX512").
[[nodiscard]] int threads_in_use();
[[nodiscard]] std::string instructions_in_use();

/// Peak number of bytes of libtorch's tensors on GPU 0 since the process began; 0 without a GPU.
[[nodiscard]] std::uint64_t peak_gpu_bytes();

}  // namespace isthmus::trainer
