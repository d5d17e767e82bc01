#pragma once
// The passes over flat tensors, on whichever device they lie. fp32 unless said otherwise; bf16 tensors are
// bfloat16.

#include <ATen/core/Tensor.h>

#include <span>

#include "isthmus/trainer/adamw.h"

namespace isthmus::trainer::flat {

/// fp32 or bf16.
[[nodiscard]] double norm(const at::Tensor& gradient);

struct Buffers {
  at::Tensor parameters, first_moment, second_moment;
  at::Tensor twin;  ///< bf16, or undefined
};
/// `gradient` fp32 or bf16.
void adamw(const AdamWStep& step, const DecaySegment& segment, const at::Tensor& gradient,
           const Buffers& buffers);

/// twin[range] = parameters[range] rounded.
void refresh_twin(const at::Tensor& parameters, const at::Tensor& twin, outer_sync::Range range);

/// fp32 in host memory; pinned if asked for.
[[nodiscard]] at::Tensor host_buffer(std::uint64_t size, bool pinned);
[[nodiscard]] std::span<float> floats(const at::Tensor& host_tensor);
/// Over memory that is only read and outlives the tensor.
[[nodiscard]] at::Tensor view_of(std::span<const float> host_values);
[[nodiscard]] at::Tensor part(const at::Tensor& buffer, outer_sync::Range range);
[[nodiscard]] at::Tensor zeros(std::uint64_t size, at::ScalarType type, at::Device device);

}  // namespace isthmus::trainer::flat
