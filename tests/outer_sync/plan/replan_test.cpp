// When a running run is planned again, and when its settings stay.

#include "isthmus/outer_sync/plan/replan.h"

#include <gmock/gmock.h>

#include <functional>

#include "isthmus/outer_sync/plan/recommend.h"

namespace isthmus::outer_sync::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double mbit = 1e6 / 8;

/// A run of two replicas with steps of one second and 4 M parameters at 4 bits: it exchanges 2.2 MB.
class Replan : public testing::Test {
 protected:
  Replan() {
    outer.num_fragments = 4;
    outer.sync_every = 20;
    outer.sync_delay = 2;
    outer.resolve();
    outer.take_replicas(2);
    constexpr std::uint64_t size = 1'048'576;
    std::vector<Range> ranges;
    for (std::uint64_t p = 0; p < 4; ++p) ranges.push_back({p * size, size});
    layout = FragmentLayout(ranges, 65536);
    lines = lines_of(8 * mbit, 0.05);
    begin();
  }

  [[nodiscard]] static LineReadings lines_of(double up, double round_trip) {
    LineReadings out;
    out.members = {{"eu", 1, up}, {"us", 1, up}};
    out.ways = {{}, {round_trip, 0}, {round_trip, 0}, {}};
    return out;
  }
  void begin(const LineReadings& expected = {}) { replanner.emplace(rules, outer, expected); }

  [[nodiscard]] Standing standing() const {
    return {.outer = outer,
            .layout = *layout,
            .steps_left = steps_left,
            .may_set_every = may_set_every,
            .may_set_delay = may_set_delay};
  }
  /// Gives the replanner a reading each second, each changed by `noise`; applies its proposals if `takes` is
  /// true.
  std::vector<Proposal> watch(int for_seconds, const std::function<void(LineReadings&)>& noise = {},
                              bool takes = true) {
    std::vector<Proposal> out;
    for (const int end = seconds + for_seconds; seconds < end; ++seconds) {
      auto now = lines;
      if (noise) noise(now);
      const auto proposal = replanner->look(seconds, now, standing());
      if (!proposal) continue;
      out.push_back(*proposal);
      if (!takes) continue;
      outer.sync_every = proposal->every;
      outer.sync_delay = proposal->delay;
    }
    return out;
  }
  void set_rates(double up) {
    for (auto& member : lines.members) member.up = up;
  }

  OuterConfig outer;
  std::optional<FragmentLayout> layout;
  LineReadings lines;
  ReplanRules rules{.utilization = 0.99};
  std::optional<Replanner> replanner;
  std::uint64_t steps_left = 1'000'000;
  bool may_set_every = true, may_set_delay = true;
  int seconds = 0;
};

/// The predicted utilization of two replicas with these settings and links.
double utilization(const OuterConfig& outer, const FragmentLayout& layout, const LineReadings& lines) {
  Setting setting;
  for (const auto& member : lines.members)
    setting.network.replicas.push_back({member.step_seconds, member.up, unlimited});
  setting.network.place = {0, 1};
  const double one_way = lines.ways[1].round_trip / 2;
  setting.network.one_way = {0, one_way, one_way, 0};
  return predict(outer, cut(outer, layout, setting), setting).utilization;
}

TEST_F(Replan, NothingIsProposedWhileTheLinesDo) {
  ASSERT_GT(utilization(outer, *layout, lines), 0.99);
  EXPECT_TRUE(watch(600).empty());
  EXPECT_EQ(replanner->simulated(), 1U) << "the links did not change, so there was nothing to simulate";
}

TEST_F(Replan, ALineThatGetsThinAndComesBack) {
  ASSERT_TRUE(watch(120).empty());
  lines.members[0].up /= 32;
  const auto up = watch(300);
  ASSERT_EQ(up.size(), 1U) << "there must be exactly one change";
  EXPECT_EQ(up[0].every_before, 20);
  EXPECT_GT(up[0].every, 20);
  EXPECT_LT(up[0].before, 0.99);
  EXPECT_GE(up[0].after, 0.99);
  EXPECT_GE(utilization(outer, *layout, lines), 0.99) << "the same links, computed another way";
  EXPECT_THAT(up[0].cause, HasSubstr("the upload rate of eu is 250 kbit/s instead of 8 Mbit/s"));
  EXPECT_THAT(to_string(up[0]), HasSubstr(" -> "));
  lines.members[0].up *= 32;
  const auto down = watch(300);
  ASSERT_EQ(down.size(), 1U);
  EXPECT_EQ(down[0].every, 20) << "the run's first interval";
  EXPECT_EQ(down[0].delay, 2);
  EXPECT_THAT(down[0].cause, HasSubstr("the upload rate of eu is 8 Mbit/s instead of 250 kbit/s"));
}

TEST_F(Replan, AStepOfDelayMoreIsNotTakenBack) {
  ASSERT_TRUE(watch(120).empty());
  lines.members[0].up /= 8;
  const auto up = watch(300);
  ASSERT_EQ(up.size(), 1U);
  EXPECT_EQ(up[0].every, 20);
  EXPECT_EQ(up[0].delay, 3);
  lines.members[0].up *= 8;
  EXPECT_TRUE(watch(300).empty()) << "the cost is not worth a change";
}

TEST_F(Replan, ADelayThatIsNotNeededAnyMoreIsTakenBackWithALongerIntervalToo) {
  ASSERT_TRUE(watch(120).empty());
  set_rates(0.2 * mbit);
  ASSERT_EQ(watch(300).size(), 1U);
  outer.sync_every = 100;  // the longest interval
  outer.sync_delay = 10;
  set_rates(1.2 * mbit);
  const auto down = watch(600);
  ASSERT_EQ(down.size(), 1U);
  EXPECT_LE(3 * learning_cost(down[0].every, down[0].delay), 2 * learning_cost(100, 10));
  EXPECT_GE(down[0].after, 0.99);
}

TEST_F(Replan, ADelayBeyondTheLongestStays) {
  outer.sync_delay = 15;  // set by hand; the coordinator does not know it any more
  begin();
  outer.sync_delay = 17;
  ASSERT_TRUE(watch(120).empty());
  lines.members[0].up /= 32;
  const auto up = watch(300);
  ASSERT_EQ(up.size(), 1U);
  EXPECT_EQ(up[0].delay, 17);
  EXPECT_LT(up[0].every, 100) << "the shortest sufficient interval, not the longest";
}

TEST_F(Replan, NeverBelowWhatTheRunBeganWith) {
  set_rates(1000 * mbit);
  EXPECT_TRUE(watch(600).empty()) << "shorter intervals gain no time";
}

TEST_F(Replan, WhatLastsForSecondsOnlyIsNoReason) {
  ASSERT_TRUE(watch(60).empty());
  set_rates(0.2 * mbit);
  ASSERT_TRUE(watch(10).empty());
  set_rates(8 * mbit);
  EXPECT_TRUE(watch(300).empty());
}

TEST_F(Replan, NoisyReadingsChangeNothing) {
  // Every third reading is off by a factor from a quarter to four.
  int at = 0;
  const auto noise = [&](LineReadings& now) {
    if (++at % 3 != 0) return;
    const double factor = at % 2 == 0 ? 0.25 : 4;
    for (auto& member : now.members) member.up *= factor;
    for (auto& way : now.ways) way.round_trip *= factor;
  };
  EXPECT_TRUE(watch(900, noise).empty());
  // Every reading is off by up to 30 %: the first proposal must hold.
  std::uint32_t state = 1;
  const auto wild = [&](LineReadings& now) {
    for (auto& member : now.members) {
      state = state * 1664525 + 1013904223;
      member.up *= 0.7 + 0.6 * (state >> 8) / double(1 << 24);
    }
  };
  lines = lines_of(1.5 * mbit, 0.05);
  EXPECT_LE(watch(3600, wild).size(), 2U);
}

TEST_F(Replan, ALineThatSwingsIsFollowedNoFasterThanIsAllowed) {
  rules.min_seconds = 200;
  rules.tuning.confirmed = 5.0 / 200;
  begin();
  std::size_t changes = 0;
  for (int i = 0; i < 40; ++i) {
    set_rates((i % 2 == 0 ? 1 : 8) * mbit);
    changes += watch(30).size();
  }
  EXPECT_LE(changes, 1200U / 200 + 1);
}

TEST_F(Replan, ALongerRoundTripAsksForALongerDelay) {
  ASSERT_TRUE(watch(60).empty());
  for (auto& way : lines.ways) way.round_trip *= 40;  // 2 s; the delay hides 2 s
  const auto found = watch(300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_GT(found[0].delay, 2);
  EXPECT_THAT(found[0].cause, HasSubstr("the round trip eu -> us is 2e+03 ms instead of 50 ms"));
}

TEST_F(Replan, ASlowPathCountsLikeASlowLine) {
  ASSERT_TRUE(watch(60).empty());
  lines.ways[2].rate = 0.4 * mbit;
  const auto found = watch(300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].cause, HasSubstr("us -> eu delivers 400 kbit/s, which was not known"));
}

TEST_F(Replan, AStragglerIsNoReason) {
  ASSERT_TRUE(watch(60).empty());
  lines.members[1].step_seconds = 3;
  ASSERT_LT(utilization(outer, *layout, lines), 0.5) << "the fast replica waits";
  EXPECT_TRUE(watch(600).empty()) << "a longer interval does not help against a straggler";
}

TEST_F(Replan, FasterStepsAre) {
  ASSERT_TRUE(watch(60).empty());
  for (auto& member : lines.members) member.step_seconds = 0.2;
  const auto found = watch(300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].cause, HasSubstr("the slowest replica's step takes 200 ms instead of 1e+03 ms"));
}

TEST_F(Replan, AChangeByACalendarIsCertain) {
  ASSERT_TRUE(watch(60).empty());
  set_rates(0.2 * mbit);
  replanner->calendar_changed();
  const auto up = watch(static_cast<int>(rules.tuning.readings));
  ASSERT_EQ(up.size(), 1U) << "as soon as there are enough readings";
  EXPECT_GT(up[0].every, 20);
  set_rates(8 * mbit);
  replanner->calendar_changed();
  const auto down = watch(static_cast<int>(rules.tuning.readings));
  ASSERT_EQ(down.size(), 1U) << "also right after another change";
  EXPECT_EQ(down[0].every, 20);
  replanner->calendar_changed();
  EXPECT_TRUE(watch(60).empty()) << "the links are the same";
  set_rates(0.2 * mbit);
  EXPECT_TRUE(watch(8).empty()) << "this change is not the calendar's, so it must be confirmed";
}

TEST_F(Replan, WithoutReadingsNothingIsProposed) {
  set_rates(0.2 * mbit);
  const auto full = lines;
  lines.members[0].step_seconds = 0;
  EXPECT_TRUE(watch(300).empty()) << "a replica has made no step yet";
  lines = full;
  for (auto& way : lines.ways) way = {};
  EXPECT_TRUE(watch(300).empty()) << "no member is connected";
  lines = full;
  lines.ways.pop_back();
  EXPECT_TRUE(watch(300).empty()) << "the table has the wrong size";
  lines = full;
  lines.members.resize(1);
  lines.ways.resize(1);
  EXPECT_TRUE(watch(300).empty()) << "a single member has no links";
  lines = full;
  set_rates(0);
  EXPECT_TRUE(watch(300).empty()) << "the links were never full";
  lines = full;
  EXPECT_EQ(watch(300).size(), 1U) << "with all readings there must be a proposal";
}

TEST_F(Replan, WhatIsNotMeasuredIsAsItWasPlanned) {
  begin(lines_of(0.2 * mbit, 0.05));
  set_rates(0);
  EXPECT_EQ(watch(300).size(), 1U);
}

TEST_F(Replan, TheCauseIsAgainstWhatWasPlannedWith) {
  begin(lines_of(10 * mbit, 0.05));
  set_rates(0.4 * mbit);
  const auto found = watch(300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].cause, HasSubstr("instead of 10 Mbit/s"));
}

TEST_F(Replan, AMemberThatComesMakesTheReadingsBeginAnew) {
  ASSERT_TRUE(watch(60).empty());
  set_rates(0.4 * mbit);
  ASSERT_TRUE(watch(4).empty());
  lines.members.push_back({"za", 1, 0.4 * mbit});
  lines.ways.assign(9, {0.05, 0});
  const auto begun = seconds;
  const auto found = watch(300, {}, false);
  ASSERT_FALSE(found.empty());
  ASSERT_TRUE(begun + static_cast<int>(rules.tuning.readings) < seconds);
}

TEST_F(Replan, WhatMayNotBeSetStays) {
  set_rates(0.4 * mbit);
  may_set_every = false;
  for (const auto& proposal : watch(300)) EXPECT_EQ(proposal.every, 20);
  may_set_delay = false;
  EXPECT_TRUE(watch(300).empty());
  may_set_every = true;
  outer.sync_delay = 2;
  const auto found = watch(300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].delay, 2);
  EXPECT_GT(found[0].every, 20);
}

TEST_F(Replan, WhatIsRefusedIsNotAskedForAtEveryReading) {
  set_rates(0.4 * mbit);
  EXPECT_LE(watch(300, {}, false).size(), 300U / 60);
}

TEST_F(Replan, WhereNothingReachesItTheMostThereIsOnce) {
  set_rates(0.02 * mbit);
  const auto found = watch(900);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].every, 100);
  EXPECT_LT(found[0].after, 0.99);
  EXPECT_GT(found[0].after, found[0].before);
}

TEST_F(Replan, AtTheEndOfTheRunItIsTooLate) {
  set_rates(0.4 * mbit);
  steps_left = 30;
  EXPECT_TRUE(watch(300).empty());
}

TEST_F(Replan, ManyReplicasAreSimulatedFewTimes) {
  constexpr std::size_t many = 64;
  outer.take_replicas(many);
  lines = {};
  for (std::size_t m = 0; m < many; ++m) lines.members.push_back({std::to_string(m), 1, 16 * mbit});
  lines.ways.assign(many * many, {0.05, 0});
  begin();
  ASSERT_TRUE(watch(20).empty());
  set_rates(2 * mbit);
  EXPECT_EQ(watch(40).size(), 1U);
  EXPECT_LE(replanner->simulated(), 3U);
}

}  // namespace
}  // namespace isthmus::outer_sync::plan
