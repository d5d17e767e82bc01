#include "isthmus/data/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace isthmus::data {
namespace {

using Windows = std::vector<std::uint64_t>;

/// The windows that all replicas together read at one step with equal batches, in the order of the run's
/// sequences.
Windows union_at(std::uint64_t step, std::uint64_t windows, std::uint64_t batch, std::uint64_t replicas) {
  Windows out;
  for (std::uint64_t b = 0; b < batch; ++b) {
    for (std::uint64_t m = 0; m < replicas; ++m)
      out.push_back(Sampler(windows, m, replicas, 5).at(step * batch + b).window);
  }
  return out;
}

TEST(Sampler, CountsFullWindows) {
  EXPECT_EQ(window_count(0, 4), 0U);
  EXPECT_EQ(window_count(4, 4), 0U);
  EXPECT_EQ(window_count(5, 4), 1U);
  EXPECT_EQ(window_count(8, 4), 1U);
  EXPECT_EQ(window_count(9, 4), 2U);
}

TEST(Sampler, AnEpochTakesEveryWindowOnce) {
  const Sampler sampler(100, 0, 1, 9);
  Windows first;
  Windows second;
  for (std::uint64_t sequence = 0; sequence < 200; ++sequence) {
    const auto place = sampler.at(sequence);
    EXPECT_EQ(place.epoch, sequence / 100);
    (sequence < 100 ? first : second).push_back(place.window);
  }
  EXPECT_NE(first, second);
  Windows all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_NE(first, all);
  for (auto* epoch : {&first, &second}) {
    std::sort(epoch->begin(), epoch->end());
    EXPECT_EQ(*epoch, all);
  }
}

TEST(Sampler, SeedsGiveOrdersOfTheirOwn) {
  const Sampler a(1000, 0, 1, 1);
  const Sampler b(1000, 0, 1, 2);
  int equal = 0;
  for (std::uint64_t sequence = 0; sequence < 100; ++sequence)
    equal += a.at(sequence).window == b.at(sequence).window ? 1 : 0;
  EXPECT_LT(equal, 10);
}

// Batch sizes and steps may differ between replicas: only the number of sequences that each has used counts.
RC_GTEST_PROP(SamplerProperty, ReplicasShareNoWindowInAnEpoch, ()) {
  const auto replicas = *rc::gen::inRange<std::uint64_t>(1, 6);
  const auto windows = *rc::gen::inRange<std::uint64_t>(1, 200);
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (std::uint64_t m = 0; m < replicas; ++m) {
    const Sampler sampler(windows, m, replicas, 5);
    const auto count = *rc::gen::inRange<std::uint64_t>(0, 200);
    for (std::uint64_t sequence = 0; sequence < count; ++sequence) {
      const auto place = sampler.at(sequence);
      RC_ASSERT(place.window < windows);
      RC_ASSERT(seen.emplace(place.epoch, place.window).second);
    }
  }
}

RC_GTEST_PROP(SamplerProperty, WhatAllSeeDependsOnTheTotalBatchAlone, ()) {
  const auto windows = *rc::gen::inRange<std::uint64_t>(1, 500);
  const auto step = *rc::gen::arbitrary<std::uint32_t>();
  const auto together = union_at(step, windows, 12, 1);
  for (const std::uint64_t replicas : {2, 3, 4, 6, 12}) {
    RC_ASSERT(union_at(step, windows, 12 / replicas, replicas) == together);
  }
}

// For all sizes, with groups and without.
RC_GTEST_PROP(SamplerProperty, WithGroupsAnEpochTakesEveryWindowOnceTheyStandWhereBlocksAre, ()) {
  const auto windows = *rc::gen::inRange<std::uint64_t>(1, 400);
  const Shuffle shuffle{*rc::gen::inRange<std::uint64_t>(1, 20), *rc::gen::inRange<std::uint64_t>(1, 6)};
  const Sampler sampler(windows, 0, 1, *rc::gen::arbitrary<std::uint32_t>(), shuffle);
  RC_ASSERT(sampler.has_groups() == (windows > shuffle.group_windows()));
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::uint64_t> seen;
    for (auto k = epoch * windows; k < (epoch + 1) * windows; ++k) {
      const auto place = sampler.at(k);
      RC_ASSERT(place.epoch == epoch && place.window < windows);
      RC_ASSERT(seen.insert(place.window).second);
      if (!sampler.has_groups()) continue;
      const auto visit = sampler.visit(k);
      RC_ASSERT(visit.epoch == epoch && visit.end > k && visit.rank < sampler.windows_of(visit.group));
      std::vector<std::uint32_t> order(sampler.windows_of(visit.group));
      sampler.order(epoch, visit.group, order);
      const auto index = order[visit.rank];
      const auto rank = index / shuffle.block;
      RC_ASSERT(rank < sampler.blocks_of(visit.group) && rank <= shuffle.group);
      const auto block = sampler.block(epoch, visit.group, rank);
      const auto in_block = index % shuffle.block;
      RC_ASSERT(in_block < block.count && block.count <= shuffle.block);
      RC_ASSERT(block.first + in_block == place.window);
    }
  }
}

RC_GTEST_PROP(SamplerProperty, ReplicasTakeGroupsByTurnsAndShareNone, ()) {
  const auto windows = *rc::gen::inRange<std::uint64_t>(50, 400);
  const auto replicas = *rc::gen::inRange<std::uint64_t>(1, 5);
  const Shuffle shuffle{*rc::gen::inRange<std::uint64_t>(1, 5), *rc::gen::inRange<std::uint64_t>(1, 5)};
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (std::uint64_t m = 0; m < replicas; ++m) {
    const Sampler sampler(windows, m, replicas, 5, shuffle);
    if (!sampler.has_groups()) return;
    auto visit = sampler.visit(0);
    std::uint64_t begin = 0;
    for (std::uint64_t k = 0; k < 2 * windows; ++k) {
      const auto place = sampler.at(k);
      RC_ASSERT(seen.emplace(place.epoch, place.window).second);
      const auto here = sampler.visit(k);
      if (k == visit.end) {
        visit = here;
        begin = k;
      }
      RC_ASSERT(here.epoch == visit.epoch && here.group == visit.group && here.end == visit.end);
      RC_ASSERT(here.rank == visit.rank + k - begin);
    }
  }
}

TEST(Sampler, WindowsOfOneBlockAreSpreadOverItsGroup) {
  const Sampler sampler(64 * 100, 0, 1, 5, {64, 16});
  std::uint64_t same_block = 0;
  for (std::uint64_t k = 1; k < 1024; ++k)
    same_block += sampler.at(k).window / 64 == sampler.at(k - 1).window / 64 ? 1U : 0U;
  EXPECT_LT(same_block, 100U) << "expected a sixteenth of 1024";
}

TEST(HeldoutWindow, AreEvenlySpacedAndDistinct) {
  EXPECT_EQ(heldout_window(0, 4, 100), 0U);
  EXPECT_EQ(heldout_window(1, 4, 100), 25U);
  EXPECT_EQ(heldout_window(3, 4, 100), 75U);
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_EQ(heldout_window(i, 7, 7), i);
}

}  // namespace
}  // namespace isthmus::data
