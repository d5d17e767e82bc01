#include "isthmus/trainer/replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "isthmus/base/error.h"
#include "isthmus/trainer/adamw.h"
#include "small_model.h"

namespace isthmus::trainer {
namespace {

using outer_sync::Range;
using testing::HasSubstr;

/// One thread for the whole program: the models are too small to divide, and tests run in parallel.
class OneThread : public testing::Environment {
  void SetUp() override { prepare_process({.threads = 1, .deterministic = false}); }
};
[[maybe_unused]] const auto* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

TEST(Replica, StartsFromTheInitialParameters) {
  Replica replica(small_table(), small_options());
  EXPECT_EQ(values_of(replica.parameters()), initial_parameters(small_table(), 5));
  EXPECT_EQ(replica.steps(), 0);
}

TEST(Replica, LearnsInBothPrecisions) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica replica(small_table(), small_options(precision));
    const auto losses = train(replica, 150);
    EXPECT_GT(losses.front(), 3) << to_string(precision);
    EXPECT_LT(losses.back(), 0.7) << to_string(precision);
    EXPECT_EQ(replica.steps(), 150);
  }
}

TEST(Replica, AddressesStayTheSame) {
  Replica replica(small_table(), small_options());
  const auto* parameters = replica.parameters().data();
  const auto* gradients = replica.gradients().data();
  train(replica, 3);
  EXPECT_EQ(replica.parameters().data(), parameters);
  EXPECT_EQ(replica.gradients().data(), gradients);
  EXPECT_EQ(replica.modify({64, 10}).data(), parameters + 64);
}

TEST(Replica, PaddingStaysZero) {
  Replica replica(small_table(), small_options());
  train(replica, 5);
  const auto fragments = replica.table().layout().fragments();
  for (std::size_t p = 1; p < fragments.size(); ++p) {
    for (auto i = fragments[p - 1].end(); i < fragments[p].begin; ++i) EXPECT_EQ(replica.parameters()[i], 0);
  }
}

TEST(Replica, RepeatsToTheBit) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica a(small_table(), small_options(precision)), b(small_table(), small_options(precision));
    EXPECT_EQ(train(a, 20), train(b, 20));
    EXPECT_EQ(values_of(a.parameters()), values_of(b.parameters()));
  }
}

std::vector<float> gradient_of(const ReplicaOptions& options, const ModelShape& shape) {
  Replica replica({shape, 3, 1024}, options);
  OwnedBatch batch(1, 5, 12);
  replica.forward_backward(batch.get());
  return values_of(replica.gradients());
}

TEST(Replica, TheGradientOfMicroBatchesIsTheWholeBatchs) {
  for (const auto& shape : {small_shape(), small_gpt2_shape()}) {
    auto options = small_options();
    options.inner.z_loss = 0.01;
    const auto exact = gradient_of(options, shape);
    for (const std::int64_t micro_batch : {1, 2, 5, 9}) {
      options.trainer.micro_batch = micro_batch;
      options.precision = Precision::fp32;
      EXPECT_LT(distance(gradient_of(options, shape), exact), 1e-6) << micro_batch;
      options.precision = Precision::bf16;
      EXPECT_LT(distance(gradient_of(options, shape), exact), 0.03) << micro_batch;
    }
  }
}

TEST(Replica, MicroBatchesTrainAsTheWholeBatchDoes) {
  auto options = small_options();
  Replica whole(small_table(), options);
  options.trainer.micro_batch = 3;
  options.trainer.activation_checkpointing = true;
  Replica parts(small_table(), options);
  const auto expected = train(whole, 30), actual = train(parts, 30);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-3) << i;
}

TEST(Replica, Gpt2LearnsInBothPrecisions) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica replica({small_gpt2_shape(), 3, 1024}, small_options(precision));
    const auto losses = train(replica, 150);
    EXPECT_GT(losses.front(), 3) << to_string(precision);
    EXPECT_LT(losses.back(), 0.7) << to_string(precision);
  }
}

TEST(Replica, TheStepIsClippedAdamWOfTheGradient) {
  Replica replica(small_table(), small_options());
  const auto& table = replica.table();
  auto p = values_of(replica.parameters());
  std::vector<float> m(p.size()), v(p.size());
  OwnedBatch batch(1, 4, 12);
  replica.forward_backward(batch.get());
  auto gradient = values_of(replica.gradients());
  for (auto& g : gradient) g *= 100;
  std::copy(gradient.begin(), gradient.end(), replica.gradients().begin());
  const double norm = replica.inner_step(0.01);
  EXPECT_EQ(norm, gradient_norm(gradient));
  EXPECT_GT(norm, 1);
  InnerConfig inner = small_options().inner;
  const auto step = BiasCorrection(inner, 0).next(inner, 0.01, clip_scale(norm, 1));
  for (const auto& segment : decay_segments(table.decay_ranges(), table.buffer_size())) {
    const auto cut = [&](auto& values) {
      return std::span(values).subspan(segment.range.begin, segment.range.size);
    };
    adamw(step, segment.decay, cut(gradient), {cut(p), cut(m), cut(v), {}});
  }
  EXPECT_EQ(values_of(replica.parameters()), p);
}

TEST(Replica, GradientsThatWereTakenAreTheOnesUsed) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica taken(small_table(), small_options(precision)), plain(small_table(), small_options(precision));
    OwnedBatch batch(1, 4, 12);
    for (auto* replica : {&taken, &plain}) replica->forward_backward(batch.get());
    EXPECT_EQ(taken.gradients().size(), taken.table().buffer_size());
    taken.inner_step(0.01);
    plain.inner_step(0.01);
    EXPECT_EQ(values_of(taken.parameters()), values_of(plain.parameters()));
    for (auto* replica : {&taken, &plain}) replica->forward_backward(batch.get());
    std::ranges::fill(taken.gradients(), 0.0F);
    EXPECT_EQ(taken.inner_step(0.01), 0);
    EXPECT_GT(plain.inner_step(0.01), 0);
  }
}

TEST(Replica, WhatTheOuterLoopWritesReachesTheModel) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica changed(small_table(), small_options(precision)),
        trained(small_table(), small_options(precision));
    train(trained, 10);
    const auto target = values_of(trained.parameters());
    for (const auto& fragment : changed.table().layout().fragments()) {
      std::ranges::copy(std::span(target).subspan(fragment.begin, fragment.size),
                        changed.modify(fragment).begin());
      changed.modified(fragment);
    }
    OwnedBatch batch(999, 4, 12);
    EXPECT_EQ(changed.forward_backward(batch.get()), trained.forward_backward(batch.get()));
    EXPECT_EQ(values_of(changed.read({0, 100})), values_of(trained.read({0, 100})));
  }
}

TEST(Replica, RestoringAStateContinuesAsIfNothingHadHappened) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica whole(small_table(), small_options(precision));
    train(whole, 10);
    const auto state = whole.state();
    const auto rest = train(whole, 10);
    Replica resumed(small_table(), small_options(precision));
    resumed.restore(state);
    EXPECT_EQ(resumed.steps(), 10);
    EXPECT_EQ(train(resumed, 10), rest);
    EXPECT_EQ(values_of(resumed.parameters()), values_of(whole.parameters()));
  }
}

TEST(Replica, WithAnothersParametersMomentsAndStepsItGoesOnLikeIt) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica donor(small_table(), small_options(precision)), joiner(small_table(), small_options(precision));
    train(donor, 7);
    train(joiner, 3);  // its own steps, which are overwritten
    const Range all{0, donor.table().buffer_size()};
    std::ranges::copy(donor.read(all), joiner.modify(all).begin());
    joiner.modified(all);
    // In two parts, as fragments arrive.
    for (const Range part : {Range{0, 128}, Range{128, all.size - 128}})
      joiner.set_moments(part, donor.first_moment(part), donor.second_moment(part));
    joiner.set_steps(donor.steps());
    EXPECT_EQ(joiner.steps(), 7);
    EXPECT_EQ(train(joiner, 5), train(donor, 5)) << to_string(precision);
    EXPECT_EQ(values_of(joiner.parameters()), values_of(donor.parameters()));
  }
}

void expect_error(ErrorKind kind, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Replica, ALossThatIsNotFiniteIsAnError) {
  Replica replica(small_table(), small_options());
  replica.modify({0, 1})[0] = std::numeric_limits<float>::quiet_NaN();
  replica.modified({0, 1});
  OwnedBatch batch(1, 4, 12);
  const auto& first = replica.table().tensors().front().name;
  expect_error(ErrorKind::divergence,
               "step 1 is not finite; nor is the parameter of " + first + " at element 0",
               [&] { replica.forward_backward(batch.get()); });
}

TEST(Replica, AGradientThatIsNotFiniteChangesNothing) {
  Replica replica(small_table(), small_options());
  const auto before = values_of(replica.parameters());
  OwnedBatch batch(1, 4, 12);
  replica.forward_backward(batch.get());
  const auto& second = replica.table().tensors()[1];
  replica.gradients()[second.range.begin + 3] = std::numeric_limits<float>::infinity();
  expect_error(ErrorKind::divergence, "gradient of step 1 of " + second.name + " at element 3",
               [&] { replica.inner_step(0.01); });
  EXPECT_EQ(values_of(replica.parameters()), before);
  EXPECT_EQ(replica.steps(), 0);
}

TEST(Replica, IdsOutsideTheVocabularyAreAnError) {
  Replica replica(small_table(), small_options());
  OwnedBatch batch(1, 4, 12);
  const auto view = batch.get();
  batch.id(51) = 31;  // only a target
  expect_error(ErrorKind::data, "31", [&] { replica.forward_backward(view); });
  batch.id(51) = 0;
  batch.id(0) = 65535;
  expect_error(ErrorKind::data, "65535", [&] { replica.forward_backward(view); });
}

TEST(Replica, ShorterSequencesAndSmallerBatchesFit) {
  Replica replica(small_table(), small_options());
  OwnedBatch batch(1, 1, 5);
  EXPECT_TRUE(std::isfinite(replica.forward_backward(batch.get())));
}

}  // namespace
}  // namespace isthmus::trainer
