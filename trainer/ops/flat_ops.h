#pragma once
// Passes over flat tensors, on the device that has them. fp32 unless stated otherwise; bf16 tensors are
// bfloat16.

#include <ATen/core/Tensor.h>

#include <span>

#include "isthmus/trainer/adamw.h"

namespace isthmus::trainer::flat {

/// `gradient` is fp32 or bf16.
[[nodiscard]] double norm(const at::Tensor& gradient);

struct Buffers {
  at::Tensor parameters, first_moment, second_moment;
  at::Tensor twin;  ///< bf16, or undefined
};
/// `gradient` is fp32 or bf16.
void adamw(const AdamWStep& step, const DecaySegment& segment, const at::Tensor& gradient,
           const Buffers& buffers);

/// twin[range] = parameters[range] rounded.
void refresh_twin(const at::Tensor& parameters, const at::Tensor& twin, outer_sync::Range range);

/// fp32 in host memory, optionally pinned.
[[nodiscard]] at::Tensor host_buffer(std::uint64_t size, bool pinned);
[[nodiscard]] std::span<float> floats(const at::Tensor& host_tensor);
/// A tensor over memory that is only read and must outlive it.
[[nodiscard]] at::Tensor view_of(std::span<const float> host_values);
[[nodiscard]] at::Tensor part(const at::Tensor& buffer, outer_sync::Range range);
[[nodiscard]] at::Tensor zeros(std::uint64_t size, at::ScalarType type, at::Device device);

}  // namespace isthmus::trainer::flat
