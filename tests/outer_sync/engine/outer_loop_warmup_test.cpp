// The synchronous warm-up: gradients are averaged at every step, and nothing is sent on the schedule.

#include <gmock/gmock.h>

#include <cmath>

#include "replicas.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using testing::Each;
using Values = std::vector<float>;

OuterConfig warm(const std::string& codec, std::int64_t steps) {
  auto config = config_of(3, 6, 2, 0.5);
  config.codec = "int4";
  config.warmup_codec = codec;
  config.warmup_steps = steps;
  return config;
}

float mean_of(std::size_t members, std::uint64_t step, std::size_t i) {
  float sum = 0;
  for (std::size_t m = 0; m < members; ++m) sum += random_step(m, step, i);
  return sum / static_cast<float>(members);
}

TEST(Warmup, InFp32EveryReplicaGetsTheMeanGradient) {
  Replicas replicas(warm("fp32", 5), layout_of(3), 3, random_step);
  replicas.train(5);
  auto expected = initial_parameters(replicas.layout());
  for (std::uint64_t step = 1; step <= 5; ++step) {
    for (const auto& fragment : replicas.layout().fragments()) {
      for (auto i = fragment.begin; i < fragment.end(); ++i)
        expected[i] += -Replicas::warmup_rate * mean_of(3, step, i);
    }
    for (std::size_t m = 0; m < 3; ++m) {
      ASSERT_EQ(replicas.at(m).locals[step - 1], expected) << "replica " << m << " after step " << step;
      ASSERT_EQ(replicas.at(m).globals[step - 1], expected)
          << "in the warm-up, local and global parameters must be equal";
    }
  }
}

TEST(Warmup, InInt4ReplicasAreEqualBitForBit) {
  Replicas replicas(warm("int4", 12), layout_of(3), 4, random_step);
  replicas.train(12);
  for (std::uint64_t t = 0; t < 12; ++t) {
    for (std::size_t m = 1; m < 4; ++m) ASSERT_EQ(replicas.at(m).locals[t], replicas.at(0).locals[t]);
  }
  replicas.expect_agreement();
}

TEST(Warmup, Int4KeepsWhatItDropsForLaterSteps) {
  // As in the streaming phase, with the replica's quantisation and the owner's: gradients of .01 next to one
  // of 1.
  const auto table = [](std::size_t, std::uint64_t, std::size_t i) {
    return i % 50 % 16 == 0 ? 1.0F : 0.01F;
  };
  Replicas replicas(warm("int4", 400), layout_of(3), 2, table);
  replicas.train(400);
  const auto initial = initial_parameters(replicas.layout());
  const auto moved = (initial[5] - replicas.at(0).locals.back()[5]) / Replicas::warmup_rate;
  EXPECT_NEAR(moved, 400 * 0.01F, 0.3F) << "two quanta of 1/7";
}

TEST(Warmup, TheScheduleBeginsWhenItEnds) {
  Replicas replicas(warm("fp32", 4), layout_of(3), 2, random_step);
  replicas.train(4);
  EXPECT_FALSE(replicas.at(0).loop.synchronous());
  const auto rounds = [&] {
    std::vector<protocol::Round> all;
    for (const auto& fragment : replicas.at(0).loop.fragments()) all.push_back(fragment.round);
    return all;
  };
  EXPECT_THAT(rounds(), Each(4U)) << "one round of every fragment in each warm-up step";
  replicas.train(7);  // H = 6, P = 3, tau = 2: fragment 1 is sent at 4 + 2 and applied at 4 + 4
  EXPECT_THAT(rounds(), Each(4U));
  replicas.train(8);
  EXPECT_THAT(rounds(), testing::ElementsAre(4, 5, 4));
  replicas.expect_agreement();
}

TEST(Warmup, ItsResidualsEndWithIt) {
  // Outer gradients must not start with the gradients' residuals: after the warm-up every residual is zero.
  // So two runs continue alike if their warm-up gave the same parameters, even with different residuals.
  auto config = warm("int4", 1);
  config.error_feedback = true;
  const auto table_with = [](float small) {
    return [small](std::size_t m, std::uint64_t step, std::size_t i) {
      if (step > 1) return random_step(m, step, i);
      return i % 50 % 16 == 0 ? 7.0F : small;  // small gradients round to zero and stay in the residual
    };
  };
  Replicas with(config, layout_of(3), 2, table_with(0.25F));
  Replicas without(config, layout_of(3), 2, table_with(0.0F));
  for (auto* run : {&with, &without}) run->train(20);
  EXPECT_EQ(with.at(0).globals[0], without.at(0).globals[0]) << "this case must round to the same parameters";
  EXPECT_EQ(with.global_hash().hex(), without.global_hash().hex());
}

TEST(Warmup, ARunThatEndsInItEndsWithEqualParameters) {
  for (const std::uint64_t last : {3U, 4U}) {  // within the warm-up, and with its last step
    Replicas replicas(warm("int4", 4), layout_of(3), 3, random_step);
    replicas.train(last);
    replicas.finish();
    replicas.expect_agreement();
    for (std::size_t m = 0; m < 3; ++m) {
      const auto global = replicas.at(m).loop.global_parameters();
      EXPECT_EQ(Values(global.begin(), global.end()), replicas.at(m).local.values);
    }
    EXPECT_EQ(replicas.at(0).loop.fragments()[0].round, last) << "nothing was left to sync";
  }
}

TEST(Warmup, GlobalParametersFollowTheLocalOnes) {
  Replicas replicas(warm("fp32", 4), layout_of(3), 1, random_step);
  replicas.train(2);
  auto& replica = replicas.at(0);
  const auto global = replica.loop.global_parameters();
  EXPECT_EQ(Values(global.begin(), global.end()), replica.local.values);
  EXPECT_EQ(replica.loop.global_hash(), hash_of(std::as_bytes(std::span(replica.local.values))));
}

TEST(Warmup, ADataParallelRunMakesNoRounds) {
  const auto config = warm("fp32", 4);
  LoneReplica replica(config, layout_of(3));
  // The gradients of a data-parallel run are averaged elsewhere.
  for (int step = 1; step <= 4; ++step) replica.loop->after_step(1);
  replica.loop->finish();
  EXPECT_TRUE(replica.exchange.contributions.empty());
  EXPECT_EQ(replica.loop->stats().rounds, 0U);
}

}  // namespace
}  // namespace isthmus::outer_sync
