// The outer loop when results leave out or reject parts of what the replica sent.

#include <gmock/gmock.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Round;
using testing::ElementsAre;

/// Weights of the alpha merge, and the carry merge.
const std::optional<double> merges[] = {0.0, 0.25, 0.5, 1.0, std::nullopt};
std::string name_of(std::optional<double> alpha) {
  return alpha ? "alpha " + std::to_string(*alpha) : "carry";
}

/// Two chunks of 16.
const FragmentLayout two_chunks({{0, 32}}, 16);

/// The contribution's first element, in fp32.
float value_of(const ScriptedExchange::Contribution& contribution) {
  float value = 0;
  std::memcpy(&value, contribution.bytes->data(), sizeof value);
  return value;
}

// For a single replica without delay and momentum, the global parameters must end at the sum of all inner
// steps, regardless of which rounds left parts of it out, provided that the last round includes all: no step
// is lost or counted twice.
TEST(LeftOut, WhatIsNotInAResultComesWithTheNext) {
  for (const auto& alpha : merges) {
    for (const bool error_feedback : {false, true}) {
      for (unsigned pattern = 0; pattern < 64;
           ++pattern) {  // which of three rounds include which of two chunks
        SCOPED_TRACE(testing::Message()
                     << name_of(alpha) << ", error feedback " << error_feedback << ", pattern " << pattern);
        auto config = averaging(1, 2, 0, alpha);
        config.error_feedback = error_feedback;
        LoneReplica replica(config, two_chunks);
        begin_at_zero(replica);
        replica.exchange.includes = [&](ChunkId k, Round round) {
          return round > 3 || ((pattern >> (2 * (round - 1) + k)) & 1) != 0;
        };
        for (int step = 1; step <= 8; ++step) replica.step(0.25F * static_cast<float>(step));
        const auto end = replica.loop->global_parameters();
        for (const std::size_t i : {0, 15, 16, 31}) {
          ASSERT_EQ(end[i], 0.25F * 36) << "element " << i;
        }
      }
    }
  }
}

// H = 2, tau = 1, alpha = 1/2, by hand, from zero; every step moves by 1. Round 1 is sent at step 2 with x =
// -2 and leaves the replica out. At step 3, local = 3 is merged with theta = 0 to 1.5: half of the two sent
// steps is lost, and as always half of the third. The loss of the sent steps is made up for.
TEST(LeftOut, LocalParametersKeepWhatTheOthersDoNotHave) {
  for (const bool error_feedback : {false, true}) {
    auto config = averaging(1, 2, 1, 0.5);
    config.error_feedback = error_feedback;
    LoneReplica replica(config, FragmentLayout({{0, 16}}, 16));
    begin_at_zero(replica);
    replica.exchange.includes = [](ChunkId, Round round) { return round != 1; };
    for (int step = 1; step <= 3; ++step) replica.step(1);
    EXPECT_EQ(value_of(replica.exchange.contributions.at(0)), -2);
    EXPECT_EQ(replica.loop->global_parameters()[5], 0);
    EXPECT_EQ(replica.local.values[5], 1.5F + 1);
    EXPECT_EQ(replica.local.open, 0) << "a range was left open for modification";
    EXPECT_EQ(replica.loop->stats().left_out, 1U);
    replica.step(1);
    EXPECT_EQ(value_of(replica.exchange.contributions.at(1)), -3.5F);
    replica.step(1);
    EXPECT_EQ(replica.loop->global_parameters()[5], 3.5F);
    EXPECT_EQ(replica.local.values[5], 4) << "4.5 merged with 3.5, which includes every step";
    EXPECT_EQ(replica.loop->stats().left_out, 1U);
  }
}

TEST(LeftOut, InAnyCodecWhatWasSentComesBack) {
  // A replica that is left out of all rounds but the last, and stands still after the first, finally sends
  // what it sent first, up to the codec's error.
  for (const auto* codec : {"int8", "4bit", "bf16"}) {
    auto config = averaging(1, 1, 0, 0.5);
    config.codec = codec;
    LoneReplica replica(config, two_chunks);
    begin_at_zero(replica);
    replica.exchange.includes = [](ChunkId, Round round) { return round == 5; };
    replica.step(1);
    for (int step = 2; step <= 5; ++step) replica.step(0);
    for (const std::size_t i : {0, 31}) EXPECT_NEAR(replica.loop->global_parameters()[i], 1, 0.02) << codec;
  }
}

TEST(LeftOut, AWarmUpGradientComesWithTheNext) {
  auto config = averaging(1, 4, 0, 0);
  config.warmup_steps = 3;
  config.warmup_codec = "fp32";
  LoneReplica replica(config, FragmentLayout({{0, 16}}, 16));
  replica.exchange.includes = [](ChunkId, Round round) { return round != 1; };
  const auto begin = replica.local.values[0];
  replica.step(1);
  EXPECT_EQ(replica.local.values[0], begin) << "the mean gradient was the others' zero";
  replica.step(2);
  EXPECT_EQ(replica.local.values[0], begin + 3) << "1 and 2";
  replica.step(4);
  EXPECT_EQ(replica.local.values[0], begin + 7);
}

// alpha = 1/2, without delay, from zero. A rejected contribution is merged as if it were in the result, so
// half of it stays in the local parameters as always, and the rest is lost.
TEST(Rejected, WhatTheOthersLeftOutDoesNotComeBack) {
  for (const bool error_feedback : {false, true}) {
    auto config = averaging(1, 1, 0, 0.5);
    config.error_feedback = error_feedback;
    LoneReplica replica(config, two_chunks);
    begin_at_zero(replica);
    replica.exchange.rejects = [](ChunkId k, Round round) { return round == 1 && k == 0; };
    replica.step(4);
    EXPECT_EQ(replica.local.values[5], 2) << "merged with zero";
    EXPECT_EQ(replica.local.values[20], 4) << "the other chunk is in the result";
    EXPECT_EQ(replica.loop->stats().rejected, 1U);
    EXPECT_EQ(replica.loop->stats().left_out, 0U);
    replica.step(1);
    EXPECT_EQ(replica.loop->global_parameters()[5], 3);
    EXPECT_EQ(replica.exchange.contributions.back().weight, replica.exchange.contributions.front().weight)
        << "its tokens must not come back either";
  }
}

TEST(Rejected, AWarmUpGradientDoesNotComeBack) {
  auto config = averaging(1, 4, 0, 0);
  config.warmup_steps = 2;
  config.warmup_codec = "fp32";
  LoneReplica replica(config, FragmentLayout({{0, 16}}, 16));
  replica.exchange.rejects = [](ChunkId, Round round) { return round == 1; };
  const auto begin = replica.local.values[0];
  replica.step(1);
  replica.step(2);
  EXPECT_EQ(replica.local.values[0], begin + 2);
}

// The same with the carry merge: all of the rejected contribution is lost.
TEST(Rejected, IsTakenFromTheLocalParametersWithCarry) {
  for (const bool error_feedback : {false, true}) {
    auto config = averaging(1, 1, 0, std::nullopt);
    config.error_feedback = error_feedback;
    LoneReplica replica(config, two_chunks);
    begin_at_zero(replica);
    replica.exchange.rejects = [](ChunkId k, Round round) { return round == 1 && k == 0; };
    replica.step(4);
    EXPECT_EQ(replica.local.values[5], 0);
    EXPECT_EQ(replica.local.values[20], 4) << "the other chunk is in the result";
    replica.step(1);
    EXPECT_EQ(replica.loop->global_parameters()[5], 1);
    EXPECT_EQ(replica.loop->stats().rejected, 1U);
  }
}

// H = 2, tau = 1, by hand, from zero; every step moves by 1. Round 1 is sent at step 2 with x = -2 and
// applied at step 3, so local = 2 + the third step. Round 2 sends steps 3 and 4.
TEST(Carry, KeepsWhatWasTrainedMeanwhile) {
  LoneReplica replica(averaging(1, 2, 1, std::nullopt), FragmentLayout({{0, 16}}, 16));
  begin_at_zero(replica);
  for (int step = 1; step <= 3; ++step) replica.step(1);
  EXPECT_EQ(replica.loop->global_parameters()[5], 2);
  EXPECT_EQ(replica.local.values[5], 3);
  replica.step(1);
  EXPECT_EQ(value_of(replica.exchange.contributions.at(1)), -2);
}

// The local parameters keep what the sender's codec lost, the owner's residual what the owner's codec lost.
// So all steps reach the global parameters in the end.
TEST(Carry, WhatTheCodecsLoseComesWithLaterRounds) {
  for (const auto* codec : {"2bit", "4bit", "int4"}) {
    auto config = averaging(1, 2, 1, std::nullopt);
    config.codec = codec;
    config.error_feedback = true;
    config.chunk_elements = 4096;
    LoneReplica replica(config, FragmentLayout({{0, 4096}}, 4096));
    begin_at_zero(replica);
    const auto moves = [](std::uint64_t i) { return 1 + 0.5F * random_unit(3, 0, i); };
    for (int step = 1; step <= 100; ++step) replica.step(moves);
    for (int step = 1; step <= 60; ++step) replica.step(0);
    const auto global = replica.loop->global_parameters();
    for (std::size_t i = 0; i < global.size(); ++i)
      ASSERT_NEAR(global[i], 100 * moves(i), 0.01F) << codec << ", element " << i;
  }
}

TEST(LeftOut, ARoundInACheckpointRemembersIt) {
  for (const auto& alpha : {std::optional(0.5), std::optional<double>()}) {
    const auto config = averaging(1, 4, 2, alpha);
    const auto run = [&](std::optional<int> stop) {
      auto replica = std::make_unique<LoneReplica>(config, two_chunks);
      const auto rules = [](ChunkId k, Round round) { return round != 2 || k == 1; };
      const auto rejects = [](ChunkId k, Round round) { return round == 3 && k == 0; };
      replica->exchange.includes = rules;
      replica->exchange.rejects = rejects;
      for (int step = 1; step <= 20; ++step) {
        replica->step(0.5F);
        if (stop != step) continue;
        auto next = std::make_unique<LoneReplica>(config, two_chunks);
        next->exchange.includes = rules;
        next->exchange.rejects = rejects;
        next->local.values = replica->local.values;
        const auto saved = replica->loop->save();
        EXPECT_TRUE(saved);
        next->loop->restore(*saved);
        next->exchange.contributions = {};
        replica = std::move(next);
      }
      return replica->loop->global_hash().hex();
    };
    const auto whole = run(std::nullopt);
    for (int stop = 7; stop <= 16; ++stop) EXPECT_EQ(run(stop), whole) << "stopped after step " << stop;
  }
}

TEST(Weights, AreTokensSinceTheFragmentWasLastSent) {
  auto config = averaging(2, 4, 1, 0.5);
  config.warmup_steps = 2;
  config.final_sync = true;
  LoneReplica replica(config, FragmentLayout({{0, 16}, {16, 16}}, 16));
  for (std::uint64_t step = 1; step <= 10; ++step) replica.step(0.5F, step);
  replica.loop->finish();
  std::vector<std::pair<ChunkId, std::uint64_t>> weights;
  for (const auto& c : replica.exchange.contributions) weights.emplace_back(c.chunk, c.weight);
  using Pair = std::pair<ChunkId, std::uint64_t>;
  EXPECT_THAT(weights, ElementsAre(Pair(0, 1), Pair(1, 1), Pair(0, 2), Pair(1, 2),  // the warm-up's rounds
                                   Pair(1, 3 + 4),                                  // sent at step 4
                                   Pair(0, 3 + 4 + 5 + 6),                          // sent at step 6
                                   Pair(1, 5 + 6 + 7 + 8),                          // sent at step 8
                                   Pair(0, 7 + 8 + 9 + 10),                         // sent at step 10
                                   Pair(0, 0), Pair(1, 9 + 10)))
      << "fragment 0 was trained on no tokens since; if all replicas report 0, they weigh the same";
}

// A replica that was cut off while the others continued comes back with all its steps. Without delay, and
// where the others stood still, the sum is exact (as in LeftOut).
TEST(Absence, WhoComesBackLosesNothing) {
  for (const auto& alpha : merges) {
    SCOPED_TRACE(name_of(alpha));
    LoneReplica replica(averaging(2, 4, 0, alpha), FragmentLayout({{0, 16}, {16, 16}}, 16));
    begin_at_zero(replica);
    bool connected = true;
    replica.exchange.commits = [&](FragmentId, Round) { return connected; };
    // The others meanwhile make rounds 2 to 4 of fragment 0, and rounds 3 and 4 of fragment 1.
    replica.exchange.includes = [](ChunkId k, Round round) { return round < 2 + k || round > 4; };
    for (int i = 0; i < 7; ++i) replica.step(1);
    connected = false;
    replica.step(1);
    ASSERT_TRUE(replica.loop->frozen()) << "fragment 0 has sent its second round";
    connected = true;
    replica.exchange.others_at = 17;
    replica.step(0);
    EXPECT_FALSE(replica.loop->frozen());
    EXPECT_EQ(replica.loop->step(), 18U);
    EXPECT_EQ(replica.loop->stats().left_out, 5U);
    EXPECT_THAT(replica.exchange.rounds_of(0), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(replica.exchange.rounds_of(1), ElementsAre(1, 2, 3, 4, 5))
        << "the last round is sent on time";
    for (int i = 0; i < 2; ++i) replica.step(1);
    EXPECT_THAT(replica.exchange.rounds_of(0), ElementsAre(1, 2, 3, 4, 5));
    EXPECT_EQ(replica.exchange.contributions.back().weight, 4U + 1U + 2U)
        << "tokens of steps 5 to 8, of the step on coming back and of two more: tokens go with their steps";
    const auto global = replica.loop->global_parameters();
    EXPECT_EQ(global[0], 8 + 2);
    EXPECT_EQ(global[16], 8) << "fragment 1 was sent at step 18";
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
