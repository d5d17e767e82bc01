// Compares predictions with arithmetic done by hand, and with the published table.

#include "isthmus/outer_sync/plan/predict.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <numeric>

#include "isthmus/outer_sync/plan/paper_table.h"
#include "isthmus/outer_sync/plan/recommend.h"

namespace isthmus::outer_sync::plan {
namespace {

using testing::Each;
using testing::Field;
using testing::Ge;
using testing::Le;

/// Replicas with steps of one second and links of `up` bytes per second, each at its own site.
Network network(std::size_t replicas, double up, double round_trip = 0) {
  Network out;
  out.replicas.assign(replicas, {.step_seconds = 1, .up = up, .down = unlimited});
  out.place.resize(replicas);
  std::iota(out.place.begin(), out.place.end(), 0U);
  out.one_way.assign(replicas * replicas, round_trip / 2);
  return out;
}

/// One fragment of `bytes` bytes, owned in equal shares, in small pieces, sent every tenth step.
Simulated one_fragment(Network lines, double bytes, std::uint64_t delay) {
  constexpr int pieces = 100;
  const auto owners = static_cast<std::uint32_t>(lines.replicas.size());
  Fragment fragment;
  for (int i = 0; i < pieces; ++i) {
    Piece piece;
    for (std::uint32_t m = 0; m < owners; ++m) piece.shares.push_back({m, bytes / pieces / owners});
    fragment.pieces.push_back(std::move(piece));
  }
  return {std::move(lines), {std::move(fragment)}, Schedule(1, 10, delay, 0), 10, 30};
}

TEST(Plan, WithoutDelayEverybodyWaitsForTheExchange) {
  // Each of two owners sends half of it as contributions and half as results: 100 bytes at 50 bytes per
  // second.
  const auto times = simulate(one_fragment(network(2, 50), 100, 0));
  EXPECT_NEAR(times.utilization(), 10.0 / 12, 0.002);
  EXPECT_NEAR(times.rounds.front().seconds, 2, 0.02);
  EXPECT_NEAR(times.replicas[0].sent, 2 * 100, 1e-6) << "two rounds were measured";
}

TEST(Plan, RepliesWaitForTheWayThereAndBack) {
  // Contributions take 1 s, and each result follows at once. The last results leave at 2 s and arrive 1 s
  // later.
  const auto near = simulate(one_fragment(network(2, 50, 2), 100, 0));
  EXPECT_NEAR(near.rounds.front().seconds, 3, 0.03);
  // Results cannot start before 4 s. They take 1 s to send and 4 s to arrive.
  const auto far = simulate(one_fragment(network(2, 50, 8), 100, 0));
  EXPECT_NEAR(far.rounds.front().seconds, 9, 0.03);
}

TEST(Plan, ADelayHidesWhatFitsIntoIt) {
  EXPECT_NEAR(simulate(one_fragment(network(2, 50), 100, 2)).utilization(), 1, 1e-9);
  EXPECT_NEAR(simulate(one_fragment(network(2, 50), 100, 1)).utilization(), 10.0 / 11, 0.002);
  EXPECT_NEAR(simulate(one_fragment(network(2, 50), 100, 3)).rounds.front().slack, 1, 0.02);
}

TEST(Plan, ALineThatIsTooThinSetsThePace) {
  // 2000 bytes every ten steps at 50 bytes per second take 40 s, regardless of the delay.
  EXPECT_NEAR(simulate(one_fragment(network(2, 50), 2000, 9)).utilization(), 10.0 / 40, 0.01);
}

TEST(Plan, TheSlowLineAndTheSlowReplicaHoldAllBack) {
  auto lines = network(3, 1000);
  // This replica sends 50 bytes of contributions in 5 s and 50 bytes of results in another 5 s. It has its
  // own results at once and is 5 s ahead of the others, who receive them last: each round costs every replica
  // 5 s.
  lines.replicas[2].up = 10;
  EXPECT_NEAR(simulate(one_fragment(lines, 75, 0)).utilization(), 10.0 / 15, 0.005);
  auto speeds = network(3, unlimited);
  speeds.replicas[1].step_seconds = 2;
  const auto times = simulate(one_fragment(speeds, 75, 1));
  EXPECT_NEAR(times.replicas[1].utilization, 1, 1e-9);
  EXPECT_NEAR(times.replicas[0].utilization, 0.5, 0.02);
}

TEST(Plan, ThinWaysInwardsAndThinPathsCountToo) {
  auto inwards = network(2, unlimited);
  for (auto& replica : inwards.replicas) replica.down = 50;
  EXPECT_NEAR(simulate(one_fragment(inwards, 100, 0)).rounds.front().seconds, 2, 0.05);
  auto paths = network(2, unlimited);
  paths.path = {unlimited, 50, 50, unlimited};
  EXPECT_NEAR(simulate(one_fragment(paths, 100, 0)).rounds.front().seconds, 2, 0.05);
}

TEST(Plan, ManyAtOnePlaceAreLikeAsManyAtTheirOwn) {
  constexpr std::size_t replicas = 20;
  auto together = network(replicas, 50, 0.2);
  together.place.assign(replicas, 0);
  together.one_way = {0.1};
  const auto each = simulate(one_fragment(network(replicas, 50, 0.2), 100, 0));
  const auto one = simulate(one_fragment(together, 100, 0));
  EXPECT_NEAR(one.utilization(), each.utilization(), 0.005);
  EXPECT_NEAR(one.replicas[3].received, each.replicas[3].received, 0.1 * each.replicas[3].received);
}

TEST(Plan, TheTableOfThePaper) {
  int same = 0;
  for (const auto& row : paper_table()) {
    for (std::size_t k = 0; k < paper_levels.size(); ++k) {
      EXPECT_LE(std::abs(row.apart[k]), 1) << row.model << ", " << row.method << " at " << paper_levels[k];
      same += row.apart[k] == 0 ? 1 : 0;
    }
  }
  EXPECT_GE(same, 60) << "of 75 cells";
}

// ---- a run's own settings ----

struct Model {
  OuterConfig outer;
  Setting setting;
  Model() {
    outer.num_fragments = 4;
    outer.sync_every = 20;
    outer.sync_delay = 2;
    outer.resolve();
    outer.take_replicas(2);
    setting.network = network(2, 1'000'000, 0.1);
  }
  [[nodiscard]] Cut cut(std::int64_t fragments) const {
    std::vector<Range> ranges;
    const std::uint64_t size = 4'194'304 / static_cast<std::uint64_t>(fragments);
    for (std::int64_t p = 0; p < fragments; ++p)
      ranges.push_back({static_cast<std::uint64_t>(p) * size, size});
    return plan::cut(outer, FragmentLayout(ranges, 65536), setting);
  }
};

TEST(Plan, BytesAreThoseOfTheCodec) {
  const Model model;
  const auto prediction = predict(model.outer, model.cut(4), model.setting);
  const double payload = 4'194'304 * 4.25 / 8 / 20;  // 2 (M - 1) / M = 1
  EXPECT_GT(prediction.bytes_per_step, payload);
  EXPECT_LT(prediction.bytes_per_step, 1.005 * payload) << "headers";
}

TEST(Plan, WhatIsRecommendedReachesWhatIsWanted) {
  const Model model;
  std::map<std::int64_t, Cut> cuts;
  const auto cut = [&](std::int64_t fragments) -> const Cut& {
    return cuts.try_emplace(fragments, model.cut(fragments)).first->second;
  };
  Wanted wanted;
  wanted.num_fragments = {8};
  wanted.codecs = {"fp32", "4bit", "2bit", "sign"};
  const auto found = choices(model.outer, cut, model.setting, wanted);
  ASSERT_THAT(found, testing::SizeIs(4));
  EXPECT_THAT(found,
              Each(Field(&Choice::prediction, Field(&Prediction::utilization, Ge(wanted.utilization)))));
  const auto every = [](const Choice& choice) { return choice.outer.sync_every.parts.back().value; };
  EXPECT_GT(every(found[0]), every(found[1])) << "32 bits per element need a longer interval than four";
  EXPECT_GE(every(found[1]), every(found[2]));
  EXPECT_FALSE(found[2].outer.error_feedback) << "with carry, two bits need no error feedback";
  EXPECT_TRUE(found[3].outer.error_feedback) << "one bit needs error feedback";
  ASSERT_NE(best(found), nullptr);
  EXPECT_THAT(every(*best(found)), Le(every(found[0])));
}

TEST(Plan, TheCheapestOfAllPairsIsRecommended) {
  int on_time = 0;
  for (const double round_trip : {0.05, 1.5}) {
    for (double up = 150e3; up < 500e3; up += 25e3) {
      Model model;
      model.setting.network = network(2, up, round_trip);
      const auto cut = model.cut(4);
      Wanted wanted;
      wanted.codecs = {"4bit"};
      const auto found = choices(
          model.outer, [&](std::int64_t) -> const Cut& { return cut; }, model.setting, wanted);
      std::int64_t cheapest = 0, shortest = 0, its_delay = 0;
      for (const std::int64_t every : {5, 10, 15, 20, 30, 40, 50, 60, 80, 100}) {
        for (std::int64_t delay = 1; delay <= std::min<std::int64_t>(10, every / 2); ++delay) {
          auto outer = model.outer;
          outer.sync_every = every;
          outer.sync_delay = delay;
          if (predict(outer, cut, worse(model.setting, wanted.margin)).utilization < wanted.utilization)
            continue;
          const auto cost = learning_cost(every, delay);
          if (cheapest == 0 || cost < cheapest) cheapest = cost;
          if (shortest == 0) shortest = every, its_delay = delay;
        }
      }
      if (cheapest == 0) continue;
      ASSERT_THAT(found, testing::SizeIs(1)) << up << " " << round_trip;
      const auto every = found[0].outer.sync_every.parts.back().value, delay = found[0].outer.sync_delay;
      EXPECT_EQ(learning_cost(every, delay), cheapest) << up << " " << round_trip;
      if (every > shortest && delay < its_delay) ++on_time;
    }
  }
  EXPECT_GT(on_time, 0) << "a longer interval must sometimes be chosen for a shorter delay";
}

TEST(Plan, WhatNoSettingReachesIsNotRecommended) {
  Model model;
  model.setting.network = network(2, 10);
  const auto cut = model.cut(4);
  Wanted wanted;
  wanted.codecs = {"4bit"};
  const auto found = choices(
      model.outer, [&](std::int64_t) -> const Cut& { return cut; }, model.setting, wanted);
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(best(found), nullptr);
}

}  // namespace
}  // namespace isthmus::outer_sync::plan
