#include "isthmus/trainer/evaluate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "device/batch.h"
#include "models/model.h"
#include "ops/flat_ops.h"

namespace isthmus::trainer {

struct Inference::State {
  State(ParameterTable its_table, Device its_device, Precision precision, std::int64_t longest_sequence,
        std::int64_t separator)
      : table(std::move(its_table)),
        device(torch_device(its_device)),
        longest(longest_sequence),
        flat(flat::zeros(table.buffer_size(), precision == Precision::bf16 ? at::kBFloat16 : at::kFloat,
                         device)),
        model(table, {.longest = longest, .separator = separator}, flat, {}) {}

  /// On a GPU, the length is rounded up to a multiple of 64: libtorch plans attention for each new length,
  /// which takes longer than the computation. Padding behind a token does not change the prediction after it.
  [[nodiscard]] std::int64_t padding_behind(std::int64_t tokens) const {
    constexpr std::int64_t together = 64;
    if (device.is_cpu()) return 0;
    return std::min(longest, (tokens + together - 1) / together * together) - tokens;
  }

  ParameterTable table;
  at::Device device;
  std::int64_t longest;
  at::Tensor flat;
  Model model;
};

Inference::Inference(ParameterTable table, Device device, Precision precision, std::int64_t longest_sequence,
                     std::int64_t separator)
    : state_(std::make_unique<State>(std::move(table), device, precision, longest_sequence, separator)) {}
Inference::~Inference() = default;

void Inference::load(std::span<const float> parameters) {
  assert(parameters.size() == state_->table.buffer_size());
  const at::NoGradGuard no_grad;
  state_->flat.copy_(flat::view_of(parameters));
}

LossSum Inference::loss(const data::Batch& batch) {
  const at::NoGradGuard no_grad;
  const auto tokens = on_device(batch, state_->device, vocab());
  const auto count = static_cast<std::uint64_t>(tokens.targets_BT.numel());
  const double mean = state_->model.loss(tokens.inputs_BT, tokens.targets_BT).item<float>();
  return {.nats = mean * static_cast<double>(count), .tokens = count};
}

std::vector<float> Inference::next_logits(std::span<const std::int64_t> tokens) {
  assert(!tokens.empty() && static_cast<std::int64_t>(tokens.size()) <= state_->longest);
  const at::NoGradGuard no_grad;
  check_ids(tokens, vocab());
  const auto tokens_T = at::tensor(at::ArrayRef<std::int64_t>(tokens.data(), tokens.size()));
  const auto padding = state_->padding_behind(tokens_T.numel());
  const auto tokens_1T = at::constant_pad_nd(tokens_T, {0, padding}).unsqueeze(0).to(state_->device);
  const auto logits_V = state_->model.next_logits(tokens_1T, tokens_T.numel() - 1).cpu();
  const auto values = flat::floats(logits_V);
  return {values.begin(), values.end()};
}

std::int64_t Inference::longest_sequence() const { return state_->longest; }
std::int64_t Inference::vocab() const { return state_->table.model().vocab; }

LossSum evaluate(Inference& inference, std::span<const data::Batch> batches) {
  LossSum sum;
  for (const auto& batch : batches) {
    const auto part = inference.loss(batch);
    sum.nats += part.nats;
    sum.tokens += part.tokens;
  }
  return sum;
}

}  // namespace isthmus::trainer
