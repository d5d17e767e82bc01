#include "isthmus/trainer/replica.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "device/batch.h"
#include "isthmus/base/error.h"
#include "isthmus/trainer/adamw.h"
#include "isthmus/trainer/pretrained.h"
#include "models/model.h"
#include "ops/flat_ops.h"
#include "optimizer/muon.h"
#include "replica/shares.h"

namespace isthmus::trainer {

using outer_sync::Range;

struct Replica::Impl {
  Impl(ParameterTable its_table, const ReplicaOptions& its_options)
      : table(std::move(its_table)),
        options(its_options),
        share(options.share.value_or(Range{0, table.buffer_size()})),
        segments(segments_in(decay_segments(table.decay_ranges(), table.buffer_size()), share)),
        bias(options.inner, 0),
        device(torch_device(options.device)) {
    const auto size = table.buffer_size();
    const bool bf16 = options.precision == Precision::bf16;
    buffers = {.parameters = flat::zeros(size, at::kFloat, device),
               .first_moment = flat::zeros(share.size, at::kFloat, device),
               .second_moment = flat::zeros(share.size, at::kFloat, device),
               .twin = bf16 ? flat::zeros(size, at::kBFloat16, device) : at::Tensor()};
    gradient = flat::zeros(size, bf16 ? at::kBFloat16 : at::kFloat, device);
    if (!device.is_cpu()) staging = flat::host_buffer(size, true);
    if (bf16 && (options.trainer.micro_batch > 0 || options.shared_gradient))
      gradient_sum = flat::zeros(size, at::kFloat, device);
    model.emplace(table,
                  ModelOptions{.longest = options.longest_sequence,
                               .separator = options.separator,
                               .recompute_layers = options.trainer.activation_checkpointing},
                  bf16 ? buffers.twin : buffers.parameters, gradient);
    if (options.inner.is_muon()) {
      matrices = muon_matrices(table);
      segments = without(segments, matrices);
    }
    put(buffers.parameters, options.trainer.init_from.empty()
                                ? initial_parameters(table, options.seed)
                                : read_pretrained(options.trainer.init_from, table));
    refresh({0, size});
  }

  void put(const at::Tensor& buffer, std::span<const float> values) const {
    assert(static_cast<std::int64_t>(values.size()) == buffer.numel());
    buffer.copy_(flat::view_of(values));
  }
  void refresh(Range range) const {
    if (buffers.twin.defined()) flat::refresh_twin(buffers.parameters, buffers.twin, range);
  }
  /// A range of an fp32 buffer in host memory: the buffer itself, or a copy in `staging`.
  std::span<float> on_host(const at::Tensor& buffer, Range range) const {
    if (buffer.is_cpu()) return flat::floats(buffer).subspan(range.begin, range.size);
    flat::part(staging, range).copy_(flat::part(buffer, range));
    return flat::floats(staging).subspan(range.begin, range.size);
  }

  /// The buffers that inner_step changes: the moments whole, the others cut to the share.
  [[nodiscard]] flat::Buffers own_buffers() const {
    return {.parameters = flat::part(buffers.parameters, share),
            .first_moment = buffers.first_moment,
            .second_moment = buffers.second_moment,
            .twin = buffers.twin.defined() ? flat::part(buffers.twin, share) : at::Tensor()};
  }
  /// Converts a range of the whole buffer to indexes of the moments.
  [[nodiscard]] Range in_share(Range range) const {
    if (range.size == 0) return {};
    assert(range.begin >= share.begin && range.end() <= share.end());
    return {range.begin - share.begin, range.size};
  }

  /// Mean loss of a batch. Each part is weighted by its number of sequences.
  double backward(const BatchTensors& batch) {
    const auto sequences = batch.inputs_BT.size(0);
    const auto at_once = options.trainer.micro_batch > 0 ? options.trainer.micro_batch : sequences;
    gradient.zero_();
    if (gradient_sum.defined()) gradient_sum.zero_();
    double loss = 0;
    for (std::int64_t begin = 0; begin < sequences; begin += at_once) {
      const auto count = std::min(at_once, sequences - begin);
      const double weight = static_cast<double>(count) / static_cast<double>(sequences);
      const auto part =
          model->loss(batch.inputs_BT.narrow(0, begin, count), batch.targets_BT.narrow(0, begin, count),
                      {.loss = weight, .z_loss = options.inner.z_loss});
      part.backward();
      loss += weight * part.item<float>();
      if (!gradient_sum.defined()) continue;
      gradient_sum.add_(gradient);
      gradient.zero_();
    }
    assert(model->gradients_in_place());
    return loss;
  }
  /// The gradient of the last batch.
  [[nodiscard]] const at::Tensor& batch_gradient() const {
    return gradient_sum.defined() ? gradient_sum : gradient;
  }

  /// The first value of a flat buffer that is not finite, by tensor and element: " of X at element 7". Empty
  /// if all are finite.
  [[nodiscard]] std::string first_not_finite(const at::Tensor& buffer) const {
    for (const auto& tensor : table.tensors()) {
      const auto values = flat::part(buffer, tensor.range);
      const auto bad = at::isfinite(values).logical_not();
      if (bad.any().item<bool>())
        return " of " + tensor.name + " at element " +
               std::to_string(bad.to(at::kByte).argmax().item<std::int64_t>());
    }
    return {};
  }

  ParameterTable table;
  ReplicaOptions options;
  Range share;
  std::vector<DecaySegment> segments;  ///< of the share, relative to its start; for AdamW
  std::vector<MuonMatrix> matrices;    ///< for Muon, which has no shares
  BiasCorrection bias;
  at::Device device;
  flat::Buffers buffers;
  at::Tensor gradient;       ///< fp32 or bf16, what autograd adds into
  at::Tensor gradient_sum;   ///< fp32 sum of several bf16 gradients; undefined if not needed
  at::Tensor host_gradient;  ///< fp32 copy that gradients() returned; made by its first call
  at::Tensor staging;        ///< pinned; CUDA only
  std::optional<Model> model;
  std::uint64_t steps = 0;
  bool use_host_gradient = false;
};

Replica::Replica(ParameterTable table, const ReplicaOptions& options)
    : impl_(std::make_unique<Impl>(std::move(table), options)) {}
Replica::~Replica() = default;

float Replica::forward_backward(const data::Batch& batch) {
  auto& s = *impl_;
  const auto tokens = on_device(batch, s.device, s.table.model().vocab);
  s.use_host_gradient = false;
  const auto loss = static_cast<float>(s.backward(tokens));
  if (!std::isfinite(loss)) {
    const auto parameter = s.first_not_finite(s.buffers.parameters);
    throw Error(ErrorKind::divergence,
                "the loss of step " + std::to_string(s.steps + 1) + " is not finite; " +
                    (parameter.empty() ? "all parameters are: check its batch and inner.lr"
                                       : "nor is the parameter" + parameter));
  }
  return loss;
}

void Replica::share_sequences(RankGroup* group) { impl_->model->share_sequences(group); }

std::span<float> Replica::gradients() {
  auto& s = *impl_;
  const auto& gradient = s.batch_gradient();
  const bool is_storage = s.device.is_cpu() && gradient.scalar_type() == at::kFloat;
  if (is_storage) return flat::floats(gradient);
  if (!s.host_gradient.defined())
    s.host_gradient = flat::host_buffer(s.table.buffer_size(), !s.device.is_cpu());
  if (!s.use_host_gradient) s.host_gradient.copy_(gradient);
  s.use_host_gradient = true;
  return flat::floats(s.host_gradient);
}

std::span<float> Replica::device_gradients() {
  auto& s = *impl_;
  assert(s.options.shared_gradient);
  const auto& gradient = s.batch_gradient();
  if (s.use_host_gradient) gradient.copy_(s.host_gradient);
  s.use_host_gradient = false;
  return {gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel())};
}

double Replica::inner_step(double lr) {
  auto& s = *impl_;
  const auto gradient = s.use_host_gradient ? s.host_gradient.to(s.device) : s.batch_gradient();
  const double norm = flat::norm(gradient);
  if (!std::isfinite(norm)) {
    throw Error(ErrorKind::divergence, "the gradient of step " + std::to_string(s.steps + 1) +
                                           s.first_not_finite(gradient) +
                                           " is not finite; check its batch, inner.lr and inner.clip");
  }
  const auto& inner = s.options.inner;
  const auto clip = clip_scale(norm, inner.clip);
  const auto step = s.bias.next(inner, lr, clip);
  const auto own_gradient = flat::part(gradient, s.share);
  const auto own = s.own_buffers();
  for (const auto& segment : s.segments) flat::adamw(step, segment, own_gradient, own);
  const MuonStep muon_step{lr, inner.momentum, inner.weight_decay, clip};
  for (const auto& matrix : s.matrices) muon(muon_step, matrix, gradient, s.buffers);
  ++s.steps;
  return norm;
}

std::uint64_t Replica::steps() const { return impl_->steps; }
const ParameterTable& Replica::table() const { return impl_->table; }
Device Replica::device() const { return impl_->options.device; }

std::span<const float> Replica::read(Range range) { return impl_->on_host(impl_->buffers.parameters, range); }
std::span<float> Replica::modify(Range range) { return impl_->on_host(impl_->buffers.parameters, range); }
void Replica::modified(Range range) {
  auto& s = *impl_;
  if (!s.device.is_cpu()) flat::part(s.buffers.parameters, range).copy_(flat::part(s.staging, range));
  s.refresh(range);
}
std::span<float> Replica::device_values(Range range) {
  return {impl_->buffers.parameters.data_ptr<float>() + range.begin, range.size};
}
void Replica::modified_on_device(Range range) { impl_->refresh(range); }

std::span<const float> Replica::first_moment(Range range) {
  return impl_->on_host(impl_->buffers.first_moment, impl_->in_share(range));
}
std::span<const float> Replica::second_moment(Range range) {
  return impl_->on_host(impl_->buffers.second_moment, impl_->in_share(range));
}
void Replica::set_moments(Range range, std::span<const float> first, std::span<const float> second) {
  auto& s = *impl_;
  assert(first.size() == range.size && second.size() == range.size);
  flat::part(s.buffers.first_moment, s.in_share(range)).copy_(flat::view_of(first));
  flat::part(s.buffers.second_moment, s.in_share(range)).copy_(flat::view_of(second));
}
std::array<std::span<float>, 2> Replica::device_moments() {
  const auto values = [](const at::Tensor& buffer) {
    return std::span(buffer.data_ptr<float>(), static_cast<std::size_t>(buffer.numel()));
  };
  return {values(impl_->buffers.first_moment), values(impl_->buffers.second_moment)};
}
void Replica::set_steps(std::uint64_t steps) {
  auto& s = *impl_;
  s.steps = steps;
  s.bias = BiasCorrection(s.options.inner, steps);
}

ReplicaState Replica::state() {
  ReplicaState state;
  copy_state(state);
  return state;
}

void Replica::copy_state(ReplicaState& state) {
  const auto& s = *impl_;
  const auto copy = [&](const at::Tensor& buffer, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(buffer.numel()));
    flat::view_of(to).copy_(buffer);
  };
  state.steps = s.steps;
  copy(s.buffers.parameters, state.parameters);
  copy(s.buffers.first_moment, state.first_moment);
  copy(s.buffers.second_moment, state.second_moment);
}

void Replica::forget_moments() {
  auto& s = *impl_;
  s.buffers.first_moment.zero_();
  s.buffers.second_moment.zero_();
  Replica::set_steps(0);
}

void Replica::restore(const ReplicaState& state) {
  auto& s = *impl_;
  s.put(s.buffers.parameters, state.parameters);
  const auto own = [&](std::span<const float> all) { return all.subspan(s.share.begin, s.share.size); };
  s.put(s.buffers.first_moment, own(state.first_moment));
  s.put(s.buffers.second_moment, own(state.second_moment));
  s.refresh({0, s.table.buffer_size()});
  Replica::set_steps(state.steps);
  s.use_host_gradient = false;
}

}  // namespace isthmus::trainer
