// Compares a replica on a GPU with one on the CPU. Skipped without a GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "isthmus/base/random.h"
#include "isthmus/data/device.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/trainer/evaluate.h"
#include "isthmus/trainer/outer_state.h"
#include "small_model.h"

namespace isthmus::trainer {
namespace {

using outer_sync::Range;

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const auto hardware = probe_hardware();
    if (!hardware.built_with_cuda || hardware.usable_gpus() == 0) GTEST_SKIP() << "no GPU";
    device_ = data::make_cuda_device(0, nullptr);
  }
  static ReplicaOptions options(Device device, Precision precision) {
    auto options = small_options(precision);
    options.device = device;
    return options;
  }
  /// The batch in device memory, valid until the next call.
  data::Batch on_gpu(OwnedBatch& owned) {
    auto batch = owned.get();
    const auto bytes = batch.rows.size() * batch.row_bytes();
    const auto host = device_->host_buffer(bytes);
    buffer_ = device_->device_buffer(bytes);
    std::copy_n(batch.rows.front(), bytes, host->data());
    buffer_->fill(*host, bytes);
    rows_.resize(batch.rows.size());
    for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i] = buffer_->data() + i * batch.row_bytes();
    batch.rows = rows_;
    return batch;
  }
  std::vector<float> train_on_gpu(Replica& replica, std::uint64_t steps) {
    std::vector<float> losses;
    for (std::uint64_t i = 0; i < steps; ++i) {
      OwnedBatch batch(replica.steps() + 100, 4, 12);
      losses.push_back(replica.forward_backward(on_gpu(batch)));
      replica.inner_step(1e-2);
    }
    return losses;
  }

 private:
  std::unique_ptr<data::Device> device_;
  std::unique_ptr<data::DeviceBuffer> buffer_;
  std::vector<const std::byte*> rows_;
};

TEST_F(Cuda, LossAndGradientAreNearTheCpus) {
  for (const auto& shape : {small_shape(), small_gpt2_shape()}) {
    for (const auto precision : {Precision::fp32, Precision::bf16}) {
      const double tolerance = precision == Precision::fp32 ? 1e-3 : 0.05;
      auto gpu_options = options(Device::cuda, precision), cpu_options = options(Device::cpu, precision);
      gpu_options.inner.z_loss = cpu_options.inner.z_loss = 0.01;
      gpu_options.trainer.micro_batch = 3;
      gpu_options.trainer.activation_checkpointing = true;
      Replica gpu({shape, 3, 1024}, gpu_options), cpu({shape, 3, 1024}, cpu_options);
      OwnedBatch batch(1, 4, 12);
      const auto expected = cpu.forward_backward(batch.get());
      EXPECT_NEAR(gpu.forward_backward(on_gpu(batch)), expected, tolerance * expected);
      double difference = 0, length = 0;
      const auto a = gpu.gradients(), b = cpu.gradients();
      for (std::size_t i = 0; i < a.size(); ++i) {
        difference += std::pow(a[i] - b[i], 2);
        length += std::pow(b[i], 2);
      }
      EXPECT_LT(std::sqrt(difference), tolerance * std::sqrt(length));
    }
  }
}

TEST_F(Cuda, OptimizerStepsGiveTheCpusBits) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica gpu(small_table(), options(Device::cuda, precision)),
        cpu(small_table(), options(Device::cpu, precision));
    for (int step = 0; step < 3; ++step) {
      OwnedBatch batch(1, 4, 12);
      cpu.forward_backward(batch.get());
      gpu.forward_backward(on_gpu(batch));
      std::ranges::copy(cpu.gradients(), gpu.gradients().begin());
      EXPECT_EQ(gpu.inner_step(1e-2), cpu.inner_step(1e-2));
    }
    const auto a = gpu.state(), b = cpu.state();
    EXPECT_EQ(a.parameters, b.parameters);
    EXPECT_EQ(a.first_moment, b.first_moment);
    EXPECT_EQ(a.second_moment, b.second_moment);
  }
}

TEST_F(Cuda, LearnsAndRestores) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica replica(small_table(), options(Device::cuda, precision));
    EXPECT_LT(train_on_gpu(replica, 150).back(), 0.7);
    Replica other(small_table(), options(Device::cuda, precision));
    other.restore(replica.state());
    OwnedBatch batch(3, 4, 12);
    EXPECT_EQ(other.forward_backward(on_gpu(batch)), replica.forward_backward(on_gpu(batch)));
  }
}

TEST_F(Cuda, WithAnothersMomentsItGoesOnLikeIt) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica donor(small_table(), options(Device::cuda, precision));
    Replica joiner(small_table(), options(Device::cuda, precision));
    train_on_gpu(donor, 7);
    train_on_gpu(joiner, 3);
    const Range all{0, donor.table().buffer_size()};
    std::ranges::copy(donor.read(all), joiner.modify(all).begin());
    joiner.modified(all);
    const auto first = donor.first_moment(all);
    const std::vector<float> copy(first.begin(), first.end());
    joiner.set_moments(all, copy, donor.second_moment(all));
    joiner.set_steps(donor.steps());
    EXPECT_EQ(joiner.state().second_moment, donor.state().second_moment);
    EXPECT_EQ(train_on_gpu(joiner, 5), train_on_gpu(donor, 5)) << to_string(precision);
  }
}

TEST_F(Cuda, WhatTheOuterLoopWritesReachesTheModel) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica changed(small_table(), options(Device::cuda, precision));
    Replica trained(small_table(), options(Device::cuda, precision));
    train_on_gpu(trained, 3);
    const auto target = trained.state().parameters;
    for (const auto& fragment : changed.table().layout().fragments()) {
      std::ranges::copy(std::span(target).subspan(fragment.begin, fragment.size),
                        changed.modify(fragment).begin());
      changed.modified(fragment);
    }
    EXPECT_EQ(changed.state().parameters, target);
    EXPECT_EQ(changed.read({64, 10})[3], target[67]);
    OwnedBatch batch(3, 4, 12);
    EXPECT_EQ(changed.forward_backward(on_gpu(batch)), trained.forward_backward(on_gpu(batch)));
  }
}

TEST_F(Cuda, TheOuterStateGivesTheCpusBits) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    outer_sync::OuterConfig config;
    config.merge = "alpha";
    config.error_feedback = true;
    const auto codecs = outer_sync::codec_plan(config);
    Replica gpu(small_table(), options(Device::cuda, precision)),
        cpu(small_table(), options(Device::cpu, precision));
    const auto on_gpu = make_outer_state(gpu, config), on_cpu = make_outer_state(cpu, config);
    const auto& layout = gpu.table().layout();
    const outer_sync::Range all{0, layout.buffer_size()};
    const outer_sync::BufferPool buffers(outer_sync::largest_encoded_chunk(layout, codecs), 100);
    const auto encoded = [&](outer_sync::OuterState& state, std::uint64_t round, outer_sync::FragmentId p) {
      std::vector<outer_sync::protocol::SharedBytes> chunks;
      const auto take = [&](const auto& chunk) {
        EXPECT_FALSE(chunk.bad_element);
        chunks.push_back(chunk.bytes);
      };
      state.encode(p, {.codec = codecs.codec, .round = round, .carried = 0.5F}, buffers, take).finish();
      return chunks;
    };
    for (std::uint64_t round = 1; round <= 3; ++round) {
      for (auto* replica : {&gpu, &cpu}) {
        const auto values = replica->modify(all);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += random_unit(round, 0, i) - 0.5F;
        replica->modified(all);
      }
      for (outer_sync::FragmentId p = 0; p < layout.fragment_count(); ++p) {
        const auto bytes = encoded(*on_gpu, round, p), expected = encoded(*on_cpu, round, p);
        ASSERT_EQ(bytes.size(), expected.size());
        for (std::size_t k = 0; k < bytes.size(); ++k) ASSERT_EQ(*bytes[k], *expected[k]) << "chunk " << k;
        EXPECT_EQ(on_gpu->spread(p), on_cpu->spread(p)) << "round " << round;
        EXPECT_EQ(on_gpu->products(p, codecs.codec, expected), on_cpu->products(p, codecs.codec, expected))
            << "round " << round;
        for (auto* state : {on_gpu.get(), on_cpu.get()}) {
          const auto merge = round == 2 ? quant::Merge::carry : quant::Merge::mix;
          ASSERT_FALSE(state->apply(p, codecs.codec, expected, {.merge = merge, .alpha = 0.5F}));
          state->shift_local(p, codecs.codec, {{std::span(expected).first(1), -0.5F}});
        }
      }
      const auto global = on_gpu->global(all), expected = on_cpu->global(all);
      EXPECT_TRUE(std::ranges::equal(global, expected)) << "round " << round;
      EXPECT_EQ(gpu.state().parameters, cpu.state().parameters) << "round " << round;
    }
  }
}

TEST_F(Cuda, EvaluationIsNearTheCpus) {
  OwnedBatch batch(3, 4, 12);
  const auto values = initial_parameters(small_table(), 5);
  Inference gpu(small_table(), Device::cuda, Precision::fp32, 12),
      cpu(small_table(), Device::cpu, Precision::fp32, 12);
  gpu.load(values);
  cpu.load(values);
  const auto expected = cpu.loss(batch.get()).nats;
  EXPECT_NEAR(gpu.loss(on_gpu(batch)).nats, expected, 1e-3 * expected);
  const std::vector<std::int64_t> ids = {1, 2, 3};
  EXPECT_NEAR(gpu.next_logits(ids).at(7), cpu.next_logits(ids).at(7), 1e-2);
}

}  // namespace
}  // namespace isthmus::trainer
