#include "isthmus/trainer/evaluate.h"

#include <gtest/gtest.h>

#include "isthmus/base/error.h"
#include "isthmus/trainer/sample.h"
#include "small_model.h"

namespace isthmus::trainer {
namespace {

/// Held-out batches, the last one smaller.
struct HeldOutBatches {
  HeldOutBatches() {
    for (std::uint64_t i = 0; i < 5; ++i) owned.emplace_back(500 + i, i == 4 ? 1 : 3, 12);
    for (auto& batch : owned) views.push_back(batch.get());
  }
  std::vector<OwnedBatch> owned;
  std::vector<data::Batch> views;
};

TEST(Evaluate, IsTheLossThatTrainingSees) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Replica replica(small_table(), small_options(precision));
    train(replica, 5);
    Inference inference(small_table(), Device::cpu, precision, 12);
    inference.load(replica.parameters());
    OwnedBatch batch(77, 4, 12);
    const auto sum = inference.loss(batch.get());
    EXPECT_EQ(sum.tokens, 48);
    EXPECT_NEAR(sum.nats / 48, replica.forward_backward(batch.get()), 1e-6);
  }
}

TEST(Evaluate, DoesNotDisturbTraining) {
  Replica disturbed(small_table(), small_options()), alone(small_table(), small_options());
  Inference inference(small_table(), Device::cpu, Precision::fp32, 12);
  HeldOutBatches heldout;
  for (int round = 0; round < 5; ++round) {
    inference.load(initial_parameters(small_table(), 1234));
    (void)evaluate(inference, heldout.views);
    EXPECT_EQ(train(disturbed, 2), train(alone, 2));
  }
}

TEST(Evaluate, SharesAddUp) {
  Inference inference(small_table(), Device::cpu, Precision::fp32, 12);
  inference.load(initial_parameters(small_table(), 5));
  HeldOutBatches heldout;
  const auto all = evaluate(inference, heldout.views);
  EXPECT_EQ(all.tokens, (4 * 3 + 1) * 12);
  for (const std::size_t split : {0U, 1U, 3U, 5U}) {
    LossSum sum;
    const std::span views(heldout.views);
    for (const auto share : {views.first(split), views.subspan(split)}) {
      const auto part = evaluate(inference, share);
      sum.nats += part.nats;
      sum.tokens += part.tokens;
    }
    EXPECT_EQ(sum.tokens, all.tokens);
    EXPECT_NEAR(sum.nats, all.nats, 1e-9 * all.nats);
  }
}

/// A model that has learned that the id after x is 7 x + 3 mod 31.
struct Trained {
  Trained() {
    Replica replica(small_table(), small_options());
    train(replica, 300);
    inference.load(replica.parameters());
  }
  Inference inference{small_table(), Device::cpu, Precision::fp32, 12};
};

TEST(Sample, GoesOnAsTheModelLearned) {
  Trained trained;
  const std::vector<std::int64_t> prompt = {4};
  const auto more = sample(trained.inference, prompt, {.tokens = 30, .temperature = 0, .seed = 0});
  ASSERT_EQ(more.size(), 30);
  int right = 0;
  std::int64_t id = prompt.back();
  for (const auto next : more) {
    right += next == (7 * id + 3) % 31 ? 1 : 0;
    id = next;
  }
  EXPECT_GE(right, 24);
}

TEST(Sample, IsAPureFunctionOfTheSeed) {
  Inference inference(small_table(), Device::cpu, Precision::fp32, 12);
  inference.load(initial_parameters(small_table(), 5));
  const std::vector<std::int64_t> prompt = {1, 2, 3};
  const auto with_seed = [&](std::uint64_t seed) {
    return sample(inference, prompt, {.tokens = 40, .temperature = 1, .seed = seed});
  };
  EXPECT_EQ(with_seed(1), with_seed(1));
  EXPECT_NE(with_seed(1), with_seed(2));
  for (const auto id : with_seed(3)) EXPECT_TRUE(id >= 0 && id < 31);
}

TEST(Sample, APromptOutsideTheVocabularyIsAnError) {
  Inference inference(small_table(), Device::cpu, Precision::fp32, 12);
  EXPECT_THROW((void)sample(inference, std::vector<std::int64_t>{31}, {}), Error);
}

}  // namespace
}  // namespace isthmus::trainer
