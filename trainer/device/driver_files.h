#pragma once
// Reads the NVIDIA driver's files, which describe a GPU without CUDA.

#include <filesystem>

#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

/// Fills in nvidia_gpu, nvidia_name and driver from dev/nvidia0 and proc/driver/nvidia under `root`. Does not
/// throw: an unreadable file counts as absent.
[[nodiscard]] Hardware probe_driver_files(const std::filesystem::path& root);

}  // namespace isthmus::trainer
