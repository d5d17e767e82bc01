// The outer loop when rounds leave the replica out, do not commit, or began before it joined.

#include <gmock/gmock.h>

#include "isthmus/base/error.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Round;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Values = std::vector<float>;

/// Plain averaging, for which every number in these tests is exact.
OuterConfig averaging(std::int64_t fragments, std::int64_t every, std::int64_t delay,
                      std::optional<double> alpha) {
  auto config = config_of(fragments, every, delay, alpha);
  config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
  config.final_sync = false;
  return config;
}

/// Weights of the alpha merge, and the carry merge.
const std::optional<double> merges[] = {0.0, 0.25, 0.5, 1.0, std::nullopt};
std::string name_of(std::optional<double> alpha) {
  return alpha ? "alpha " + std::to_string(*alpha) : "carry";
}

/// Two chunks of 16.
const FragmentLayout two_chunks({{0, 32}}, 16);

std::string failure_of(const std::function<void()>& work, ErrorKind kind) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

/// The contribution's first element, in fp32.
float value_of(const ScriptedExchange::Contribution& contribution) {
  float value = 0;
  std::memcpy(&value, contribution.bytes->data(), sizeof value);
  return value;
}

// ---- left out ----

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
  for (const auto* codec : {"int8", "lloyd4", "bf16"}) {
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
  for (const auto* codec : {"lloyd2", "lloyd4", "int4"}) {
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

// ---- rounds that do not commit ----

class Frozen : public testing::Test {
 protected:
  Frozen() : replica(averaging(2, 4, 1, 0.5), FragmentLayout({{0, 16}, {16, 16}}, 16)) {
    replica.exchange.commits = [this](FragmentId, Round) { return connected; };
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) replica.step(0.5F);
  }
  LoneReplica replica;
  bool connected = true;
};

TEST_F(Frozen, TheClockStandsStillUntilTheResultIsHere) {
  steps(4);  // fragment 1 was sent at 2 and applied at 3, fragment 0 is sent at 4
  connected = false;
  steps(1);
  EXPECT_TRUE(replica.loop->frozen()) << "step 5 has no result";
  EXPECT_EQ(replica.loop->step(), 5U);
  const auto sent = replica.exchange.contributions.size();
  steps(3);
  EXPECT_EQ(replica.loop->step(), 5U);
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, 3U);
  EXPECT_EQ(replica.exchange.contributions.size(), sent) << "nothing may be sent while frozen";
  connected = true;
  steps(1);
  EXPECT_FALSE(replica.loop->frozen());
  EXPECT_EQ(replica.loop->step(), 6U) << "this step is the agreed step 6";
  EXPECT_EQ(replica.loop->fragments()[0].round, 1U);
  EXPECT_THAT(replica.exchange.rounds_of(1), ElementsAre(1, 2)) << "the schedule continues: sent at 2 and 6";
  EXPECT_EQ(replica.exchange.contributions.back().weight, 3U + 3U + 1U)
      << "tokens of steps 3 to 5, of three local ones and of step 6";
  steps(4);
  EXPECT_EQ(replica.loop->step(), 10U);
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, 3U);
}

TEST(ViewChange, AReplicaTrainsOnForOneIntervalAndWaitsThen) {
  constexpr std::uint64_t interval = 4;
  LoneReplica replica(averaging(1, interval, 0, std::nullopt), FragmentLayout({{0, 16}}, 16));
  const auto begin = replica.local.values[3];
  const auto steps = [&](std::uint64_t count) {
    for (std::uint64_t step = 0; step < count; ++step) replica.step(0.5F);
  };
  replica.exchange.view_forms = [](FragmentId, Round) { return true; };
  steps(interval + interval - 1);
  EXPECT_EQ(replica.loop->step(), interval) << "round 1 is sent here, and its result is due at once";
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, interval - 1);
  EXPECT_FALSE(replica.loop->frozen()) << "the view is forming, so rounds will commit soon";
  steps(1);  // the loop waits, and the exchange has the result
  EXPECT_EQ(replica.loop->step(), interval + 1);
  EXPECT_EQ(replica.loop->fragments()[0].round, 1U);
  steps(interval - 1);
  EXPECT_EQ(replica.exchange.contributions.back().weight, 2 * interval - 1);
  steps(1);
  EXPECT_EQ(replica.loop->step(), 2 * interval) << "as many steps again in the next interval";
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, interval);
  EXPECT_FLOAT_EQ(replica.loop->global_parameters()[3], begin + 4 * 0.5F);
  replica.exchange.view_forms = [](FragmentId, Round) { return false; };
  steps(1);
  EXPECT_FLOAT_EQ(replica.loop->global_parameters()[3], begin + 11 * 0.5F) << "no step may be lost";
}

// Two fragments with results due one after the other share the steps of one interval.
TEST(ViewChange, AReplicaTrainsOnForOneIntervalHoweverManyResultsAreDue) {
  LoneReplica replica(averaging(2, 4, 1, std::nullopt), FragmentLayout({{0, 16}, {16, 16}}, 16));
  replica.exchange.view_forms = [](FragmentId, Round) { return true; };
  for (int step = 0; step < 200; ++step) replica.step(0.5F);
  const auto& stats = replica.loop->stats();
  EXPECT_LE(stats.uncommitted_steps, replica.loop->step());
  EXPECT_GE(stats.uncommitted_steps, replica.loop->step() / 2);
}

// Other replicas may have received the step's results before they sealed. This replica's report of the step
// must agree with theirs.
TEST(ViewChange, AStepIsCompleteBeforeItIsSavedOrTold) {
  LoneReplica ahead(averaging(1, 4, 0, std::nullopt), FragmentLayout({{0, 16}}, 16)),
      behind(averaging(1, 4, 0, std::nullopt), FragmentLayout({{0, 16}}, 16));
  behind.exchange.view_forms = [](FragmentId, Round) { return true; };
  for (int step = 0; step < 4; ++step) ahead.step(0.5F);
  for (int step = 0; step < 6; ++step) behind.step(0.5F);
  ASSERT_EQ(behind.loop->step(), 4U);
  ASSERT_EQ(behind.loop->fragments()[0].round, 0U);
  EXPECT_TRUE(behind.loop->complete_step());
  EXPECT_EQ(behind.loop->global_hash(), ahead.loop->global_hash());
  behind.step(0.5F);
  EXPECT_EQ(behind.loop->step(), 5U);

  LoneReplica saved(averaging(1, 4, 0, std::nullopt), FragmentLayout({{0, 16}}, 16));
  saved.exchange.view_forms = [](FragmentId, Round) { return true; };
  for (int step = 0; step < 6; ++step) saved.step(0.5F);
  const auto own = saved.loop->save(), others = ahead.loop->save();
  ASSERT_TRUE(own && others);
  EXPECT_EQ(own->agreed, others->agreed);
}

// outer.max_local_rounds = 0 limits only steps made while rounds do not commit.
TEST(ViewChange, ItsStepsDoNotCountAsLocalRounds) {
  auto config = averaging(1, 4, 0, std::nullopt);
  config.max_local_rounds = 0;
  LoneReplica replica(config, FragmentLayout({{0, 16}}, 16));
  replica.exchange.view_forms = [](FragmentId, Round) { return true; };
  for (int step = 0; step < 40; ++step) replica.step(0.5F);
  EXPECT_GT(replica.loop->stats().uncommitted_steps, 0U);
}

// With the alpha merge, which keeps a part of the local steps, the rest of the extra steps would be lost.
TEST(ViewChange, AReplicaThatMixesWaits) {
  LoneReplica replica(averaging(1, 4, 0, 0.5), FragmentLayout({{0, 16}}, 16));
  replica.exchange.view_forms = [](FragmentId, Round) { return true; };
  for (int step = 0; step < 8; ++step) replica.step(0.5F);
  EXPECT_EQ(replica.loop->step(), 8U);
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, 0U);
}

TEST_F(Frozen, OfTwoResultsThatAreDueTheSecondMayBeLate) {
  LoneReplica both(averaging(2, 1, 0, 0.5), FragmentLayout({{0, 16}, {16, 16}}, 16));
  both.exchange.commits = [this](FragmentId p, Round) { return connected || p == 0; };
  connected = false;
  both.step(0.5F);
  EXPECT_TRUE(both.loop->frozen());
  both.step(0.5F);
  connected = true;
  both.step(0.5F);
  EXPECT_EQ(both.loop->step(), 2U);
  EXPECT_EQ(both.loop->fragments()[0].round, 2U) << "the first must be applied once per round";
  EXPECT_EQ(both.loop->fragments()[1].round, 2U);
}

// Steps made while a result is late are merged like steps made while it was in flight: the part alpha of them
// is kept, with carry all. All other steps add up exactly (as in LeftOut).
TEST_F(Frozen, LocalStepsAreMergedLikeStepsInFlight) {
  for (const bool carry : {false, true}) {
    const auto alpha = carry ? std::nullopt : std::optional(0.5);
    LoneReplica alone(averaging(1, 2, 0, alpha), FragmentLayout({{0, 16}}, 16));
    const auto begin = alone.local.values[3];
    alone.exchange.commits = [this](FragmentId, Round) { return connected; };
    for (int step = 1; step <= 12; ++step) {
      connected = step < 4 || step > 6;
      alone.step(0.5F);
    }
    EXPECT_EQ(alone.loop->stats().uncommitted_steps, 2U);
    EXPECT_EQ(alone.loop->step(), 10U);
    const float kept = carry ? 12 : 12 - 3 * 0.5F;
    EXPECT_FLOAT_EQ(alone.loop->global_parameters()[3], begin + kept * 0.5F)
        << "sent at step 4, merged after three more steps";
  }
}

/// It may be the last replica that has the run's state.
TEST_F(Frozen, AtTheLimitItWaits) {
  steps(4);
  connected = false;
  for (int i = 0; i < 1 + 8; ++i) {  // the step that froze, then outer.max_local_rounds = 2 times H = 4
    EXPECT_TRUE(replica.loop->may_train()) << "step " << i;
    steps(1);
  }
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(replica.loop->may_train());
  EXPECT_TRUE(replica.loop->frozen());
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, 8U);
  EXPECT_EQ(replica.loop->step(), 5U);
  connected = true;
  EXPECT_TRUE(replica.loop->may_train());
  EXPECT_FALSE(replica.loop->frozen());
  EXPECT_EQ(replica.loop->fragments()[0].round, 1U);
  steps(1);
  EXPECT_EQ(replica.loop->step(), 6U);
}

TEST_F(Frozen, TheLimitCountsFromEachFreeze) {
  for (int freeze = 0; freeze < 5; ++freeze) {
    connected = false;
    while (!replica.loop->frozen()) steps(1);
    steps(8);
    connected = true;
    steps(1);
  }
  EXPECT_EQ(replica.loop->stats().uncommitted_steps, 5U * 8U);
}

TEST_F(Frozen, ThereIsNoCheckpointThen) {
  steps(4);
  connected = false;
  EXPECT_FALSE(replica.loop->save()) << "fragment 0 is in flight";
  connected = true;
  const auto before = replica.loop->save();
  ASSERT_TRUE(before);
}

TEST_F(Frozen, ACheckpointAtAFrozenStepGoesOnFrozen) {
  steps(4);
  connected = false;
  steps(2);
  connected = true;
  const auto saved = replica.loop->save();
  ASSERT_TRUE(saved);
  LoneReplica next(replica.config, replica.layout);
  next.local.values = replica.local.values;
  next.loop->restore(*saved);
  EXPECT_TRUE(next.loop->frozen());
  for (auto* one : {&next, &replica}) one->step(0.5F);
  EXPECT_EQ(next.loop->step(), 6U);
  EXPECT_EQ(next.loop->global_hash().hex(), replica.loop->global_hash().hex());
}

TEST_F(Frozen, TheEndWaits) {
  steps(4);
  std::size_t asked = 0;
  replica.exchange.commits = [&](FragmentId, Round) { return ++asked > 3; };
  replica.loop->finish();
  EXPECT_EQ(replica.loop->fragments()[0].round, 1U);
  EXPECT_EQ(asked, 4U);
}

TEST_F(Frozen, SoDoesTheWarmUp) {
  auto config = averaging(1, 4, 1, 0.5);
  config.warmup_steps = 2;
  LoneReplica warm(config, two_chunks);
  std::size_t asked = 0;
  warm.exchange.commits = [&](FragmentId, Round) { return ++asked > 3; };
  warm.step(1);
  EXPECT_EQ(asked, 4U);
  EXPECT_EQ(warm.loop->step(), 1U);
  EXPECT_FALSE(warm.loop->frozen());
}

// ---- state for others ----

/// A donor that trains by itself, and a joiner that gets its results.
class StateTransfer : public testing::Test {
 protected:
  StateTransfer() : config(streaming()), donor(config, layout_of(3)), joiner(config, layout_of(3)) {}
  static OuterConfig streaming() {
    auto config = config_of(3, 6, 2, 0.5);
    config.codec = "int4";
    config.error_feedback = true;
    config.warmup_steps = 2;
    return config;
  }
  void train_donor(std::uint64_t last) {
    while (donor.loop->step() < last) donor.step(0.01F * static_cast<float>(donor.loop->step()));
  }
  void install_all() {
    for (FragmentId p = 0; p < 3; ++p) joiner.loop->install(donor.exchange.source(p, false));
  }

  OuterConfig config;
  LoneReplica donor, joiner;
};

TEST_F(StateTransfer, ThereIsNoStateToGiveInTheWarmUp) {
  train_donor(1);
  EXPECT_FALSE(donor.exchange.source) << "the inner optimizer's state would be needed too";
  train_donor(2);
  EXPECT_TRUE(donor.exchange.source);
  EXPECT_EQ(donor.exchange.served, 2U) << "requests are served once per step";
  donor.loop.reset();
  EXPECT_FALSE(donor.exchange.source) << "a later request would find no loop";
}

TEST_F(StateTransfer, AfterASnapshotAndTheRoundsSinceItIsWhereTheOthersAre) {
  for (const std::uint64_t begin : {5U, 9U, 12U, 13U, 20U}) {
    SCOPED_TRACE("joins at step " + std::to_string(begin));
    LoneReplica late(config, layout_of(3));
    std::ranges::fill(late.local.values, 7.0F);
    std::vector<Round> applied;
    LoneReplica reference(config, layout_of(3));
    const auto train = [&](std::uint64_t last) {
      while (reference.loop->step() < last)
        reference.step(0.01F * static_cast<float>(reference.loop->step()));
    };
    train(begin - 2);
    for (FragmentId p = 0; p < 3; ++p) late.loop->install(reference.exchange.source(p, false));
    train(begin);
    for (FragmentId p = 0; p < 3; ++p) {
      while (late.loop->fragments()[p].round < reference.loop->fragments()[p].round)
        late.loop->follow(p, reference.exchange.results.at({p, late.loop->fragments()[p].round + 1}));
    }
    EXPECT_THAT(late.local.values, testing::Each(7.0F))
        << "following rounds may change the global parameters only";
    for (const auto& fragment : late.loop->fragments()) applied.push_back(fragment.round);
    late.loop->begin_at(begin);
    for (const auto& nothing : late.exchange.contributions)
      EXPECT_EQ(nothing.weight, 0U) << "it has nothing to contribute to rounds in flight";
    EXPECT_EQ(late.loop->global_hash().hex(), reference.loop->global_hash().hex());
    EXPECT_EQ(late.loop->fragments(), reference.loop->fragments());
    const auto global = late.loop->global_parameters();
    EXPECT_EQ(late.local.values, Values(global.begin(), global.end()));
    EXPECT_EQ(late.loop->step(), begin);
    // From here on, both get the reference's results and apply them at the same steps.
    while (reference.loop->step() < 40) {
      train(reference.loop->step() + 1);
      for (FragmentId p = 0; p < 3; ++p) {
        for (const auto& [key, chunks] : reference.exchange.results) late.exchange.results[key] = chunks;
      }
      late.step(0.3F);
      ASSERT_EQ(late.loop->global_hash().hex(), reference.loop->global_hash().hex())
          << "after step " << late.loop->step();
      ASSERT_EQ(late.loop->fragments(), reference.loop->fragments());
    }
    for (FragmentId p = 0; p < 3; ++p) {
      const auto theirs = reference.exchange.rounds_of(p), ours = late.exchange.rounds_of(p);
      ASSERT_FALSE(ours.empty());
      EXPECT_EQ(ours.back(), theirs.back());
      EXPECT_EQ(ours.size(), ours.back() - ours.front() + 1)
          << "it must contribute to every round since its first";
      EXPECT_EQ(ours.front(), applied[p] + 1) << "rounds in flight wait for the newcomer too";
    }
  }
}

TEST_F(StateTransfer, ASendPointOfARoundThatIsHereAlreadySendsNothing) {
  train_donor(14);
  install_all();
  const auto round = joiner.loop->fragments()[1].round;
  Schedule schedule(3, 6, 2, 2);
  const auto sent_at = schedule.send_step(1, round);
  joiner.loop->begin_at(sent_at - 1);
  joiner.exchange.results = donor.exchange.results;
  for (int i = 0; i < 4; ++i) joiner.step(0.5F);
  EXPECT_THAT(joiner.exchange.rounds_of(1), IsEmpty()) << "round " << round << " is applied already";
  while (joiner.exchange.rounds_of(1).empty() && joiner.loop->step() < 40) {
    train_donor(joiner.loop->step() + 1);
    joiner.exchange.results = donor.exchange.results;
    joiner.step(0.5F);
  }
  EXPECT_THAT(joiner.exchange.rounds_of(1), ElementsAre(round + 1));
}

TEST_F(StateTransfer, WhatWasInFlightBeforeIsForgotten) {
  for (int i = 0; i < 4; ++i) joiner.step(0.5F);  // fragment 1 is sent in the fourth step
  ASSERT_THAT(joiner.exchange.rounds_of(1), ElementsAre(1, 2, 3));
  joiner.exchange.chains = {};  // a new view: the exchange forgets too
  train_donor(11);
  install_all();
  joiner.loop->begin_at(11);
  EXPECT_EQ(joiner.loop->step(), 11U);
  EXPECT_EQ(joiner.loop->global_hash().hex(), donor.loop->global_hash().hex());
  EXPECT_EQ(joiner.loop->stats().left_out, 0U) << "its own step was given up, so nothing is put back";
}

TEST_F(StateTransfer, JoinedWhereTheOthersAreFrozenItIsFrozenToo) {
  train_donor(5);  // fragment 1 is sent at 4 and due at 6
  donor.exchange.commits = [](FragmentId, Round) { return false; };
  train_donor(6);
  ASSERT_TRUE(donor.loop->frozen());
  install_all();
  joiner.loop->begin_at(6);
  EXPECT_TRUE(joiner.loop->frozen());
}

TEST_F(StateTransfer, SnapshotsThatDoNotFitAreRefused) {
  train_donor(10);
  const auto good = donor.exchange.source(1, false);
  const auto refusal = [&](const std::function<void(FragmentSnapshot&)>& spoil) {
    auto bad = good;
    spoil(bad);
    const auto before = joiner.loop->global_hash();
    auto why = failure_of([&] { joiner.loop->install(bad); }, ErrorKind::network);
    EXPECT_EQ(joiner.loop->global_hash(), before) << "a rejected snapshot must change nothing";
    return why;
  };
  const auto other_size = std::make_shared<const AlignedVector<float>>(3, 0.0F);
  auto broken = *good.velocity;
  broken[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal([](auto& s) { s.fragment = 3; }),
              HasSubstr("fragment 3 is invalid: fragments of this run are numbered below 3"));
  EXPECT_THAT(refusal([&](auto& s) { s.theta = other_size; }), HasSubstr("has 3 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.velocity = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.velocity = std::make_shared<const AlignedVector<float>>(broken); }),
              HasSubstr("not finite"));
  EXPECT_THAT(refusal([](auto& s) { s.state.round = 1; }), HasSubstr("in the warm-up"));
}

TEST_F(StateTransfer, MomentsComeWithTheFragmentsWhereTheyAreAskedFor) {
  const auto size = donor.layout.buffer_size();
  PlainMoments given(size, 0.5F, 0.25F, 90), taken(size, 7, 7, 3);
  for (std::size_t i = 0; i < size; ++i) given.first[i] = static_cast<float>(i);
  train_donor(10);
  EXPECT_FALSE(donor.exchange.source(0, true).first_moment) << "the moments are not shared yet";
  donor.loop->share_moments(given);
  joiner.loop->share_moments(taken);
  EXPECT_FALSE(donor.exchange.source(0, false).first_moment) << "the moments were not asked for";
  for (FragmentId p = 0; p < 3; ++p) {
    const auto snapshot = donor.exchange.source(p, true);
    given.count -= p;  // as if each fragment came from another member
    joiner.loop->install(snapshot);
    EXPECT_EQ(taken.count, 3U) << "the count must not change before all fragments have arrived";
  }
  joiner.loop->begin_at(10);
  EXPECT_EQ(taken.count, 89U) << "the lowest count of the three";
  for (const auto& fragment : donor.layout.fragments()) {
    for (auto i = fragment.begin; i < fragment.end(); ++i) {
      ASSERT_EQ(taken.first[i], static_cast<float>(i));
      ASSERT_EQ(taken.second[i], 0.25F);
    }
  }
  // Copied once more without moments (by a newcomer that starts again), they stay unchanged.
  joiner.exchange.contributions.clear();
  install_all();
  joiner.loop->begin_at(10);
  EXPECT_EQ(taken.count, 89U);
}

TEST_F(StateTransfer, MomentsThatDoNotFitAreRefused) {
  const auto size = donor.layout.buffer_size();
  PlainMoments given(size, 0.5F, 0.25F, 90), taken(size, 7, 7, 3);
  donor.loop->share_moments(given);
  joiner.loop->share_moments(taken);
  train_donor(10);
  const auto good = donor.exchange.source(1, true);
  const auto refusal = [&](const std::function<void(FragmentSnapshot&)>& spoil) {
    auto bad = good;
    spoil(bad);
    auto why = failure_of([&] { joiner.loop->install(bad); }, ErrorKind::network);
    EXPECT_THAT(taken.first, testing::Each(7.0F)) << "a rejected snapshot must change nothing";
    return why;
  };
  const auto with = [&](float value) {
    return std::make_shared<const AlignedVector<float>>(good.theta->size(), value);
  };
  EXPECT_THAT(refusal([](auto& s) { s.second_moment = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([](auto& s) { s.first_moment = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.first_moment = with(INFINITY); }), HasSubstr("not finite"));
  EXPECT_THAT(refusal([&](auto& s) { s.second_moment = with(-1); }), HasSubstr("negative"));
}

TEST_F(StateTransfer, ResultsThatDoNotFitAreRefused) {
  train_donor(20);
  auto results = donor.exchange.results.at({1, 3});
  const auto why = [&](FragmentId p, ErrorKind kind) {
    return failure_of([&] { joiner.loop->follow(p, results); }, kind);
  };
  EXPECT_THAT(why(3, ErrorKind::network), HasSubstr("does not fit this layout"));
  results.pop_back();
  EXPECT_THAT(why(1, ErrorKind::network), HasSubstr("with 2 chunks does not fit this layout"));
  results.push_back(std::make_shared<const Bytes>(3, std::byte{0}));
  install_all();
  EXPECT_THAT(why(1, ErrorKind::divergence), HasSubstr("does not decode"));
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

TEST_F(StateTransfer, AStepThatTheRoundsAreNotOfIsRefused) {
  train_donor(20);
  install_all();
  for (const std::uint64_t step : {0U, 1U, 2U, 8U, 60U, 100U}) {
    EXPECT_THAT(failure_of([&] { joiner.loop->begin_at(step); }, ErrorKind::network),
                HasSubstr("do not match step " + std::to_string(step)));
  }
  EXPECT_NO_THROW(joiner.loop->begin_at(20));
  EXPECT_THAT(failure_of([&] { joiner.loop->begin_at(std::numeric_limits<std::uint64_t>::max()); },
                         ErrorKind::network),
              HasSubstr("too old"));
}

}  // namespace
}  // namespace isthmus::outer_sync
