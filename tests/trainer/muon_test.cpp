#include "optimizer/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model_support.h"
#include "small_model.h"

namespace isthmus::trainer {
namespace {

TEST(Muon, OrthogonalisedMatricesHaveSingularValuesNearOne) {
  for (const auto& shape : {std::vector<std::int64_t>{24, 24}, {24, 60}, {60, 24}}) {
    const auto o = orthogonalised(random(shape, 1) + 3);  // one singular value is much larger than the others
    EXPECT_EQ(o.sizes(), at::IntArrayRef(shape));
    const auto values = at::linalg_svdvals(o);
    EXPECT_LT(values.max().item<float>(), 1.3F) << shape;
    EXPECT_GT(values.median().item<float>(), 0.6F) << shape;
  }
}

TEST(Muon, ZerosStayZeros) { EXPECT_EQ(orthogonalised(at::zeros({4, 6})).abs().max().item<float>(), 0); }

TEST(Muon, TakesTheMatricesInsideLayersAndAdamWTheRest) {
  for (const auto& shape : {small_shape(), small_gpt2_shape()}) {
    const ParameterTable table(shape, 3, 1024);
    const auto matrices = muon_matrices(table);
    const auto segments = without(decay_segments(table.decay_ranges(), table.buffer_size()), matrices);
    std::vector<int> takers(table.buffer_size());
    std::uint64_t in_layers = 0;
    for (const auto& matrix : matrices) {
      EXPECT_EQ(static_cast<std::uint64_t>(matrix.rows * matrix.columns), matrix.range.size);
      for (auto i = matrix.range.begin; i < matrix.range.end(); ++i) ++takers[i];
    }
    for (const auto& segment : segments)
      for (auto i = segment.range.begin; i < segment.range.end(); ++i) ++takers[i];
    EXPECT_EQ(takers, std::vector<int>(table.buffer_size(), 1)) << "each element must be updated once";
    for (const auto& tensor : table.tensors()) {
      const bool embeds =
          tensor.name.find("embed") != std::string::npos || tensor.name.find("head") != std::string::npos ||
          tensor.name.find(".wte.") != std::string::npos || tensor.name.find(".wpe.") != std::string::npos;
      if (tensor.shape.size() == 2 && !embeds) in_layers += tensor.range.size;
    }
    std::uint64_t taken = 0;
    for (const auto& matrix : matrices) taken += matrix.range.size;
    EXPECT_EQ(taken, in_layers);
  }
}

TEST(Muon, LearnsAndGoesOnFromAStateToTheBit) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    auto options = small_options(precision);
    options.inner.optimizer = "muon";
    Replica whole(small_table(), options), half(small_table(), options), resumed(small_table(), options);
    const auto losses = train(whole, 40);
    EXPECT_LT(losses.back(), losses.front() - 0.5F);
    train(half, 20);
    resumed.restore(half.state());
    train(resumed, 20);
    EXPECT_EQ(resumed.state().parameters, whole.state().parameters);
  }
}

}  // namespace
}  // namespace isthmus::trainer
