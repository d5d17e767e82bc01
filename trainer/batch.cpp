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
  const auto type = batch.width == 2 ? at::kUInt16 : at::kUInt32;
  const auto rows =
      at::from_blob(batch.ids, {batch.sequences, batch.seq_len + 1}, at::TensorOptions(type).device(device));
  const auto ids = rows.to(at::kLong);
  if (device.is_cpu())
    check_ids({ids.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())}, vocab);
  const auto row = [&](std::int64_t begin) { return ids.narrow(1, begin, batch.seq_len).contiguous(); };
  return {row(0), row(1)};
}

}  // namespace isthmus::trainer
