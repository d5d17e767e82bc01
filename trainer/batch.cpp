#include "batch.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::trainer {

void check_ids(std::span<const std::int64_t> ids, std::int64_t vocab) {
  const auto outside = [vocab](std::int64_t id) { return id < 0 || id >= vocab; };
  const auto found = std::find_if(ids.begin(), ids.end(), outside);
  if (found == ids.end()) return;
  throw Error(ErrorKind::data, "token id " + std::to_string(*found) + " is outside the vocabulary of " +
                                   std::to_string(vocab) + " ids");
}

at::Device torch_device(Device device) {
  return device == Device::cpu ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

BatchTensors on_device(const data::Batch& batch, at::Device device, std::int64_t vocab) {
  const auto count = static_cast<std::size_t>(batch.sequences * batch.seq_len);
  if (device.is_cpu()) {
    check_ids({batch.inputs, count}, vocab);
    check_ids({batch.targets, count}, vocab);
  }
  const auto options = at::TensorOptions(at::kLong).device(device);
  const auto tensor = [&](std::int64_t* ids) {
    return at::from_blob(ids, {batch.sequences, batch.seq_len}, options);
  };
  return {tensor(batch.inputs), tensor(batch.targets)};
}

}  // namespace isthmus::trainer
