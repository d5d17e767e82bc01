#include "ops/flat_ops.h"

#include <ATen/ATen.h>

#include "cuda/flat_ops.h"
#include "ops/device_loops.h"

namespace isthmus::trainer::flat {
namespace {

std::span<std::uint16_t> bits(const at::Tensor& bf16) {
  if (!bf16.defined()) return {};
  return {static_cast<std::uint16_t*>(bf16.data_ptr()), static_cast<std::size_t>(bf16.numel())};
}

cuda::GradientType type_of(const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kBFloat16 ? cuda::GradientType::bf16 : cuda::GradientType::fp32;
}

double cuda_norm(const at::Tensor& gradient) {
  constexpr std::int64_t block = 4096;
  const auto blocks = (gradient.numel() + block - 1) / block;
  const auto device_sums = at::empty({blocks}, gradient.options().dtype(at::kDouble));
  std::vector<double> host_sums(static_cast<std::size_t>(blocks));
  return cuda::gradient_norm(gradient.data_ptr(), type_of(gradient),
                             static_cast<std::uint64_t>(gradient.numel()), device_sums.data_ptr<double>(),
                             host_sums.data(), stream_of(gradient));
}

}  // namespace

double norm(const at::Tensor& gradient) {
  if (!gradient.is_cpu()) return cuda_norm(gradient);
  return gradient.scalar_type() == at::kBFloat16 ? gradient_norm(bits(gradient))
                                                 : gradient_norm(floats(gradient));
}

void adamw(const AdamWStep& step, const DecaySegment& segment, const at::Tensor& gradient,
           const Buffers& buffers) {
  const auto twin = buffers.twin.defined() ? static_cast<std::uint16_t*>(buffers.twin.data_ptr()) : nullptr;
  if (!gradient.is_cpu()) {
    cuda::adamw(step, segment,
                {gradient.data_ptr(), type_of(gradient), buffers.parameters.data_ptr<float>(),
                 buffers.first_moment.data_ptr<float>(), buffers.second_moment.data_ptr<float>(), twin},
                stream_of(gradient));
    return;
  }
  const auto cut = [&](auto span) { return span.subspan(segment.range.begin, segment.range.size); };
  const AdamWSpans spans{cut(floats(buffers.parameters)), cut(floats(buffers.first_moment)),
                         cut(floats(buffers.second_moment)),
                         twin == nullptr ? std::span<std::uint16_t>() : cut(bits(buffers.twin))};
  if (gradient.scalar_type() == at::kBFloat16) {
    trainer::adamw(step, segment.decay, std::span<const std::uint16_t>(cut(bits(gradient))), spans);
  } else {
    trainer::adamw(step, segment.decay, std::span<const float>(cut(floats(gradient))), spans);
  }
}

void refresh_twin(const at::Tensor& parameters, const at::Tensor& twin, outer_sync::Range range) {
  if (parameters.is_cpu()) {
    round_to_bf16(floats(parameters).subspan(range.begin, range.size),
                  bits(twin).subspan(range.begin, range.size));
  } else {
    cuda::round_to_bf16(parameters.data_ptr<float>() + range.begin,
                        static_cast<std::uint16_t*>(twin.data_ptr()) + range.begin, range.size,
                        stream_of(parameters));
  }
}

at::Tensor host_buffer(std::uint64_t size, bool pinned) {
  return at::empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kFloat).pinned_memory(pinned));
}
std::span<float> floats(const at::Tensor& host_tensor) {
  return {host_tensor.data_ptr<float>(), static_cast<std::size_t>(host_tensor.numel())};
}
at::Tensor view_of(std::span<const float> host_values) {
  return at::from_blob(const_cast<float*>(host_values.data()),
                       {static_cast<std::int64_t>(host_values.size())}, at::kFloat);
}
at::Tensor part(const at::Tensor& buffer, outer_sync::Range range) {
  return buffer.narrow(0, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size));
}
at::Tensor zeros(std::uint64_t size, at::ScalarType type, at::Device device) {
  return at::zeros({static_cast<std::int64_t>(size)}, at::TensorOptions(type).device(device));
}

}  // namespace isthmus::trainer::flat
