#include "device/batch.h"

#include <ATen/ATen.h>

#ifdef ISTHMUS_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <cstring>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::trainer {

void check_ids(std::span<const std::int64_t> ids, std::int64_t vocab) {
  const auto outside = [vocab](std::int64_t id) { return id < 0 || id >= vocab; };
  const auto found = std::find_if(ids.begin(), ids.end(), outside);
  if (found == ids.end()) return;
  data_error("token id " + std::to_string(*found) + " is outside the vocabulary of " + std::to_string(vocab) +
             " ids");
}

at::Device torch_device(Device device) {
#ifdef ISTHMUS_WITH_CUDA
  if (device == Device::cuda) return {at::kCUDA, c10::cuda::current_device()};
#endif
  return device == Device::cpu ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

namespace {

/// Writes both as int64, from rows anywhere in host memory.
template <class Id>
void widen(const data::Batch& batch, std::int64_t* inputs, std::int64_t* targets) {
  const auto length = static_cast<std::size_t>(batch.seq_len);
  for (const auto* row : batch.rows) {
    const auto id = [row](std::size_t i) {
      Id value;
      std::memcpy(&value, row + i * sizeof value, sizeof value);  // rows need not be aligned
      return static_cast<std::int64_t>(value);
    };
    for (std::size_t i = 0; i < length; ++i) inputs[i] = id(i);
    for (std::size_t i = 0; i < length; ++i) targets[i] = id(i + 1);
    inputs += length;
    targets += length;
  }
}

BatchTensors on_host(const data::Batch& batch, std::int64_t vocab) {
  const auto make = [&] { return at::empty({batch.sequences(), batch.seq_len}, at::kLong); };
  BatchTensors out{make(), make()};
  auto* inputs = out.inputs_BT.mutable_data_ptr<std::int64_t>();
  auto* targets = out.targets_BT.mutable_data_ptr<std::int64_t>();
  batch.width == 2 ? widen<std::uint16_t>(batch, inputs, targets)
                   : widen<std::uint32_t>(batch, inputs, targets);
  const auto count = static_cast<std::size_t>(out.inputs_BT.numel());
  check_ids({inputs, count}, vocab);
  check_ids({targets, count}, vocab);
  return out;
}

}  // namespace

BatchTensors on_device(const data::Batch& batch, at::Device device, std::int64_t vocab) {
  if (device.is_cpu()) return on_host(batch, vocab);
  if (!batch.together) data_error("a batch for a GPU must have contiguous rows");
  const auto type = batch.width == 2 ? at::kUInt16 : at::kUInt32;
  const auto ids =
      at::from_blob(const_cast<std::byte*>(batch.rows.front()), {batch.sequences(), batch.seq_len + 1},
                    at::TensorOptions(type).device(device))
          .to(at::kLong);
  const auto row = [&](std::int64_t begin) { return ids.narrow(1, begin, batch.seq_len).contiguous(); };
  return {row(0), row(1)};
}

}  // namespace isthmus::trainer
