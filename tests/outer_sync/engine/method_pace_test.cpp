// Step pacing of replicas of unequal speed: the arithmetic, and the outer loop's agreed clock under it.

#include "isthmus/outer_sync/core/pace.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using testing::ElementsAre;

TEST(Pace, AtEqualSpeedsAnInnerStepIsAnAgreedOne) {
  Pace pace;
  EXPECT_TRUE(pace.over());
  pace.begin(30, 5, 5);
  EXPECT_EQ(pace.inner(), 30U);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(pace.tick(), 1U);
  EXPECT_TRUE(pace.over());
}

TEST(Pace, ASlowOneCrossesSeveralAndAFastOneSometimesNone) {
  Pace slow, fast;
  slow.begin(10, 1, 3);
  EXPECT_EQ(slow.inner(), 3U);
  EXPECT_EQ(slow.next(), 3U);
  EXPECT_THAT((std::vector{slow.tick(), slow.tick(), slow.tick()}), ElementsAre(3, 3, 4));
  fast.begin(3, 2, 1);
  EXPECT_EQ(fast.inner(), 6U);
  EXPECT_THAT((std::vector{fast.tick(), fast.tick(), fast.tick(), fast.tick(), fast.tick(), fast.tick()}),
              ElementsAre(0, 1, 0, 1, 0, 1));
}

TEST(Pace, AllInnerStepsOfAnIntervalMakeExactlyIt) {
  Pace pace;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto agreed = 1 + random_bits(1, 0, i) % 2000;
    const auto own = static_cast<double>(1 + random_bits(1, 1, i) % 1000);
    const auto reference = static_cast<double>(1 + random_bits(1, 2, i) % 1000);
    SCOPED_TRACE(testing::Message() << agreed << " agreed steps at " << own << " against " << reference);
    pace.begin(agreed, own, reference);
    std::uint64_t sum = 0;
    for (std::uint64_t made = 0; made < pace.inner(); ++made) {
      const auto next = pace.next();
      ASSERT_EQ(pace.tick(), next);
      sum += next;
    }
    ASSERT_EQ(sum, agreed);
    ASSERT_TRUE(pace.over() && pace.sound());
    ASSERT_TRUE(pace.ratio() >= Pace::slowest && pace.ratio() <= Pace::fastest);
  }
}

TEST(Pace, AnInnerStepCompletesElevenAgreedOnesAtMost) {
  std::uint64_t most = 0;
  for (std::uint64_t agreed = 1; agreed <= 3000; ++agreed) {
    Pace pace;
    pace.begin(agreed, 1, 8);
    while (!pace.over()) most = std::max(most, pace.tick());
  }
  EXPECT_EQ(most, Pace::max_completed);
}

TEST(Pace, AStateThatNoIntervalHasIsNotSound) {
  Pace pace;
  pace.begin(30, 1, 8);
  ASSERT_TRUE(pace.sound());
  auto bytes = to_bytes(pace);
  bytes[8] = std::byte{1};  // inner steps: one completes all thirty
  EXPECT_FALSE(from_bytes<Pace>(bytes).sound());
}

TEST(Pace, NoiseMovesNothingAndARatioHasItsLimits) {
  Pace pace;
  for (const double speed : {1.05, 0.95, 1.06, 0.94}) {
    pace.begin(100, speed, 1);
    EXPECT_EQ(pace.inner(), 100U) << speed;
  }
  pace.begin(100, 2, 1);
  EXPECT_EQ(pace.inner(), 200U);
  pace.begin(100, 2.1, 1);
  EXPECT_EQ(pace.inner(), 200U) << "close enough to keep the ratio";
  pace.begin(100, 1000, 1);
  EXPECT_EQ(pace.inner(), 800U);
  pace.begin(100, 1, 1000);
  EXPECT_EQ(pace.inner(), 13U);
  pace.begin(2, 1, 1000);
  EXPECT_EQ(pace.inner(), 1U) << "with no inner step the interval would never end";
}

TEST(Pace, WhatIsNotKnownLeavesItAsItWas) {
  Pace pace;
  pace.begin(10, 3, 1);
  for (const auto& [own, reference] :
       {std::pair(0.0, 1.0), {1.0, 0.0}, {-1.0, 1.0}, {std::nan(""), 1.0}, {1.0, INFINITY}}) {
    pace.begin(10, own, reference);
    EXPECT_EQ(pace.inner(), 30U) << own << " against " << reference;
  }
}

OuterConfig by_time(std::int64_t fragments, std::int64_t every, std::int64_t delay) {
  auto config = config_of(fragments, every, delay, 0.5);
  config.pace = "time";
  return config;
}

/// Runs one inner step; returns the agreed steps that it completes.
std::vector<std::uint64_t> agreed_steps(LoneReplica& replica, std::uint64_t tokens = 1) {
  const auto before = replica.loop->step();
  replica.step(0.25F, tokens);
  std::vector<std::uint64_t> steps;
  if (replica.loop->step() != before) steps.push_back(replica.loop->step());
  while (replica.loop->next_step()) steps.push_back(replica.loop->step());
  return steps;
}

// H = 6 at a third of the reference's speed: two inner steps per interval, three agreed steps each. Fragments
// are sent at 6, 12, ... and 3, 9, ... and applied one step later, in the middle of an inner step.
TEST(PaceLoop, ASlowOneSendsAndAppliesAtEveryAgreedStepInOrder) {
  LoneReplica slow(by_time(2, 6, 1), layout_of(2));
  LoneReplica even(config_of(2, 6, 1, 0.5), layout_of(2));
  slow.loop->set_speeds(1, 3);
  EXPECT_EQ(slow.loop->step_after_next(), 3U);
  EXPECT_THAT(agreed_steps(slow), ElementsAre(1, 2, 3));
  EXPECT_EQ(slow.loop->inner_steps(), 2U);
  EXPECT_THAT(slow.exchange.rounds_of(1), ElementsAre(1));
  EXPECT_TRUE(slow.exchange.chains.empty()) << "the round is applied at step 4";
  EXPECT_THAT(agreed_steps(slow), ElementsAre(4, 5, 6));
  EXPECT_EQ(slow.exchange.chains.at(1).round, 1U);
  EXPECT_THAT(slow.exchange.rounds_of(0), ElementsAre(1));
  while (slow.loop->step() < 30) static_cast<void>(agreed_steps(slow));
  while (even.loop->step() < 30) even.step(0.25F);
  for (FragmentId p = 0; p < 2; ++p) EXPECT_EQ(slow.exchange.rounds_of(p), even.exchange.rounds_of(p));
  EXPECT_EQ(slow.exchange.contributions.at(0).weight, 1U)
      << "one inner step with one token was made before step 3";
  slow.loop->finish();
}

TEST(PaceLoop, AFastOneMakesMoreStepsAndSendsAtTheSameAgreedOnes) {
  LoneReplica fast(by_time(2, 6, 1), layout_of(2));
  fast.loop->set_speeds(3, 1);
  std::size_t inner = 0;
  for (; fast.loop->step() < 12; ++inner) {
    const auto expected = fast.loop->step_after_next();
    static_cast<void>(agreed_steps(fast));
    EXPECT_EQ(fast.loop->step(), expected);
  }
  EXPECT_EQ(inner, 36U);
  EXPECT_EQ(fast.loop->inner_steps(), 18U);
  EXPECT_THAT(fast.exchange.rounds_of(0), ElementsAre(1, 2));
  EXPECT_THAT(fast.exchange.rounds_of(1), ElementsAre(1, 2));
  std::uint64_t tokens = 0;
  for (const auto& contribution : fast.exchange.contributions) {
    if (contribution.chunk == 0) tokens += contribution.weight;
  }
  EXPECT_EQ(tokens, 36U) << "the weights must count every token trained on";
}

TEST(PaceLoop, TheRatioChangesWhereAnIntervalBeginsOnly) {
  LoneReplica replica(by_time(1, 4, 0), layout_of(1));
  replica.loop->set_speeds(2, 1);
  static_cast<void>(agreed_steps(replica));
  replica.loop->set_speeds(1, 2);
  while (replica.loop->step() < 4) {
    EXPECT_EQ(replica.loop->inner_steps(), 8U);
    static_cast<void>(agreed_steps(replica));
  }
  EXPECT_THAT(agreed_steps(replica), ElementsAre(5, 6));
  EXPECT_EQ(replica.loop->inner_steps(), 2U);
}

TEST(PaceLoop, TheClockStopsAtItsEnd) {
  LoneReplica replica(by_time(1, 8, 0), layout_of(1));
  replica.loop->set_speeds(1, 8);
  replica.loop->end_at(5);
  EXPECT_EQ(replica.loop->step_after_next(), 5U) << "the interval ends at the same step";
  EXPECT_THAT(agreed_steps(replica), ElementsAre(1, 2, 3, 4, 5));
  LoneReplica cut(by_time(1, 8, 0), layout_of(1));
  cut.loop->set_speeds(1, 4);
  EXPECT_THAT(agreed_steps(cut), ElementsAre(1, 2, 3, 4));
  cut.loop->end_at(6);  // agreed in the middle of an interval
  EXPECT_THAT(agreed_steps(cut), ElementsAre(5, 6));
}

TEST(PaceLoop, FrozenInTheMiddleOfAnInnerStepItGoesOnThere) {
  LoneReplica replica(by_time(1, 4, 0), layout_of(1));
  replica.loop->set_speeds(1, 4);  // one inner step per interval
  bool commits = false;
  replica.exchange.commits = [&](FragmentId, protocol::Round) { return commits; };
  EXPECT_THAT(agreed_steps(replica), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(replica.loop->frozen());
  EXPECT_THAT(agreed_steps(replica), testing::IsEmpty());
  commits = true;
  EXPECT_THAT(agreed_steps(replica), ElementsAre(5, 6, 7, 8));
  EXPECT_FALSE(replica.loop->frozen());
}

TEST(PaceLoop, ACheckpointHoldsTheClockInTheMiddleOfAnInnerStep) {
  const auto config = by_time(2, 6, 1);
  LoneReplica whole(config, layout_of(2));
  whole.loop->set_speeds(2, 5);  // two and a half inner steps per interval, rounded to 2
  whole.step(0.25F);             // makes the first of its agreed steps and owes the others
  ASSERT_EQ(whole.loop->step(), 1U);
  const auto saved = whole.loop->save();
  ASSERT_TRUE(saved);
  LoneReplica resumed(config, layout_of(2));
  resumed.local.values = whole.local.values;
  resumed.loop->restore(*saved);
  for (auto* replica : {&whole, &resumed}) {
    std::vector<std::uint64_t> steps;
    while (replica->loop->next_step()) steps.push_back(replica->loop->step());
    EXPECT_THAT(steps, ElementsAre(2, 3));
    EXPECT_THAT(agreed_steps(*replica), ElementsAre(4, 5, 6));
  }
  EXPECT_EQ(resumed.local.values, whole.local.values);
}

// Fragments are due at every agreed step, and one result arrives with each inner step. So the clock stops at
// every agreed step, and each inner step leaves ten of the eleven agreed steps that it completes.
TEST(PaceLoop, ACheckpointHoldsAllThatWasOwedWhenTheClockStoppedAtEveryStep) {
  const auto config = by_time(11, 11, 0);
  LoneReplica whole(config, layout_of(11));
  whole.loop->set_speeds(1, 8);
  std::size_t results = 0;
  whole.exchange.commits = [&](FragmentId, protocol::Round) { return results > 0 && results-- > 0; };
  for (std::uint64_t step = 1; step <= 9; ++step) {
    EXPECT_THAT(agreed_steps(whole), ElementsAre(step));
    ASSERT_TRUE(whole.loop->frozen());
    results = 1;
  }
  whole.exchange.commits = [](FragmentId, protocol::Round) { return true; };
  const auto saved = whole.loop->save();
  ASSERT_TRUE(saved);
  LoneReplica resumed(config, layout_of(11));
  resumed.local.values = whole.local.values;
  resumed.loop->restore(*saved);
  const auto steps = agreed_steps(whole);
  EXPECT_EQ(steps.size(), 10U * 9 + 11) << "what was owed, and what this inner step completes";
  EXPECT_EQ(agreed_steps(resumed), steps);
  EXPECT_EQ(resumed.local.values, whole.local.values);
  EXPECT_EQ(resumed.loop->global_hash(), whole.loop->global_hash());
}

TEST(PaceLoop, TheWarmUpIsStepByStep) {
  auto config = by_time(1, 4, 0);
  config.warmup_steps = 3;
  config.warmup_codec = "fp32";
  LoneReplica replica(config, layout_of(1));
  replica.loop->set_speeds(1, 2);
  for (std::uint64_t step = 1; step <= 3; ++step) EXPECT_THAT(agreed_steps(replica), ElementsAre(step));
  EXPECT_THAT(agreed_steps(replica), ElementsAre(4, 5));
}

TEST(PaceLoop, TheBaselineHasNoIntervals) {
  auto config = by_time(1, 4, 0);
  config.method = Method::data_parallel;
  try {
    config.resolve();
    FAIL() << "data_parallel averages at every step";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("outer.pace is time and outer.method is data_parallel"));
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
