#pragma once
// The NVIDIA driver's files, which tell of a GPU without CUDA.

#include <filesystem>

#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

/// Fills in nvidia_gpu, nvidia_name and driver from dev/nvidia0 and proc/driver/nvidia under `root`. Throws
/// nothing: a file that cannot be read counts as absent.
[[nodiscard]] Hardware probe_driver_files(const std::filesystem::path& root);

}  // namespace isthmus::trainer
