#pragma once
// A loader's batch as tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "isthmus/data/loader.h"
#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

[[nodiscard]] at::Device torch_device(Device device);

struct BatchTensors {
  at::Tensor inputs_BT, targets_BT;  ///< int64, the batch's memory
};
/// Throws Error(data) for an id outside [0, vocab), on a CPU; a GPU's kernels check it themselves.
[[nodiscard]] BatchTensors on_device(const data::Batch& batch, at::Device device, std::int64_t vocab);

}  // namespace isthmus::trainer
