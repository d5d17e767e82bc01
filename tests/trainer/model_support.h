#pragma once
// Models over flat buffers, and reference losses and gradients: a plain decoder in double with full matrices
// and autograd.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "device/batch.h"
#include "models/model.h"
#include "small_model.h"

namespace isthmus::trainer {

using at::Tensor;

/// The values of a flat buffer by name, in double, each an autograd leaf.
class Weights {
 public:
  Weights(const ParameterTable& table, const Tensor& flat) {
    for (const auto& tensor : table.tensors()) {
      const auto range = tensor.range;
      auto leaf =
          flat.narrow(0, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size))
              .view(tensor.shape)
              .to(at::kDouble)
              .clone();
      weights_[tensor.name] = leaf.requires_grad_();
    }
  }
  const Tensor& operator[](const std::string& name) const { return weights_.at(name); }

 private:
  std::map<std::string, Tensor> weights_;
};

/// A model and its flat buffers.
struct FlatModel {
  explicit FlatModel(ParameterTable its_table, at::ScalarType type = at::kFloat,
                     const ModelOptions& options = {.longest = 12})
      : table(std::move(its_table)), values(initial_parameters(table, 7)) {
    // Norms differ from 1 and biases from 0, so that they and their gradients are tested, too.
    for (const auto& tensor : table.tensors()) {
      if (tensor.init != Init::one && tensor.init != Init::zero) continue;
      for (auto i = tensor.range.begin; i < tensor.range.end(); ++i)
        values[i] += 0.5F * (random_unit(1, 2, i) - 0.5F);
    }
    const auto size = static_cast<std::int64_t>(values.size());
    flat = at::from_blob(values.data(), {size}, at::kFloat).to(type, false, true);
    gradient = at::zeros({size}, type);
    model.emplace(table, options, flat, gradient);
  }
  ParameterTable table;
  std::vector<float> values;
  Tensor flat, gradient;
  std::optional<Model> model;
};

inline std::pair<Tensor, Tensor> tokens(std::int64_t sequences = 3, std::int64_t length = 12) {
  OwnedBatch batch(1, sequences, length);
  const auto ids = on_device(batch.get(), at::kCPU, 31);
  return {ids.inputs_BT, ids.targets_BT};
}

inline double relative_error(const Tensor& actual, const Tensor& expected) {
  const auto wide = expected.to(at::kDouble);
  return ((actual.to(at::kDouble) - wide).norm() / (wide.norm() + 1e-12)).item<double>();
}

/// A Reference is constructed from a ModelConfig and has `loss(weights, inputs_BT, targets_BT)`.
template <class Reference>
void expect_like_reference(FlatModel& flat, double loss_tolerance, double gradient_tolerance) {
  const auto [inputs, targets] = tokens();
  const Weights weights(flat.table, flat.flat);
  const auto expected = Reference{flat.table.model().config, weights}.loss(inputs, targets);
  expected.backward();
  const auto loss = flat.model->loss(inputs, targets);
  loss.backward();
  EXPECT_NEAR(loss.template item<float>(), expected.template item<double>(), loss_tolerance);
  EXPECT_GT(expected.template item<double>(),
            3);  // of 31 ids: an untrained model, so that all gradients are large
  EXPECT_TRUE(flat.model->gradients_in_place());
  for (const auto& tensor : flat.table.tensors()) {
    const auto range = tensor.range;
    const auto gradient = flat.gradient.narrow(0, static_cast<std::int64_t>(range.begin),
                                               static_cast<std::int64_t>(range.size));
    EXPECT_LT(relative_error(gradient, weights[tensor.name].grad().flatten()), gradient_tolerance)
        << tensor.name;
  }
}

/// Numbers in [-2, 2).
inline Tensor random(at::IntArrayRef shape, std::uint64_t stream) {
  const auto out = at::empty(shape, at::kFloat);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    out.data_ptr<float>()[i] = 4 * (random_unit(3, stream, static_cast<std::uint64_t>(i)) - 0.5F);
  }
  return out;
}
inline Tensor leaf(at::IntArrayRef shape, std::uint64_t stream) {
  return random(shape, stream).requires_grad_();
}

/// Runs backward from both outputs with the same gradient; the gradients of the inputs must agree.
inline void expect_same_gradients(const Tensor& fused, const Tensor& plain,
                                  const std::vector<Tensor>& inputs) {
  EXPECT_LT(relative_error(fused, plain), 1e-6);
  const auto grad = random(plain.sizes(), 77);
  const auto gradients = [&](const Tensor& out) { return torch::autograd::grad({out}, inputs, {grad}); };
  const auto actual = gradients(fused);
  const auto expected = gradients(plain);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    EXPECT_LT(relative_error(actual[i], expected[i]), 1e-5) << i;
}

}  // namespace isthmus::trainer
