// The outer loop while rounds do not commit or a view forms: how far it trains, and when it waits.

#include <gmock/gmock.h>

#include <optional>

#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Round;
using testing::ElementsAre;

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
  LoneReplica warm(config, FragmentLayout({{0, 32}}, 16));
  std::size_t asked = 0;
  warm.exchange.commits = [&](FragmentId, Round) { return ++asked > 3; };
  warm.step(1);
  EXPECT_EQ(asked, 4U);
  EXPECT_EQ(warm.loop->step(), 1U);
  EXPECT_FALSE(warm.loop->frozen());
}

}  // namespace
}  // namespace isthmus::outer_sync
