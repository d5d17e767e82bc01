#pragma once
// A loader's batch as tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "isthmus/data/loader.h"
#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

/// For GPUs, the calling thread's current one: the first, unless a rank of a replica has selected another.
[[nodiscard]] at::Device torch_device(Device device);

/// Throws Error(data) for an id outside [0, vocab).
void check_ids(std::span<const std::int64_t> ids, std::int64_t vocab);

struct BatchTensors {
  at::Tensor inputs_BT, targets_BT;  ///< int64
};
/// Checks ids on a CPU; a GPU's kernels check them.
[[nodiscard]] BatchTensors on_device(const data::Batch& batch, at::Device device, std::int64_t vocab);

}  // namespace isthmus::trainer
