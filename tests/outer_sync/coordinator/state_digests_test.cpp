// Finding members with wrong global parameters by comparing digests at checked rounds.

#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <numeric>

#include "coordinator_support.h"
#include "isthmus/outer_sync/engine/state_digest.h"
#include "isthmus/outer_sync/protocol/state_digests.h"
#include "replicas.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- the digest ----

TEST(StateDigestOf, EachBitCounts) {
  std::vector<float> values(97);
  std::iota(values.begin(), values.end(), -40.0F);
  const auto digest = outer_sync::digest_of(values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      auto flipped = values;
      flipped[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[i]) ^ (1U << bit));
      ASSERT_NE(outer_sync::digest_of(flipped), digest) << "value " << i << ", bit " << bit;
    }
  }
}

TEST(StateDigestOf, PlacesCountAndSoDoTheTwoVectors) {
  EXPECT_NE(outer_sync::digest_of(std::array{1.0F, 2.0F}), outer_sync::digest_of(std::array{2.0F, 1.0F}));
  EXPECT_NE(outer_sync::digest_of(std::array{0.0F}), outer_sync::digest_of(std::array{-0.0F}));
  EXPECT_NE(combined(1, 2), combined(2, 1));
}

/// The GPU kernel computes the same digest, so these values are fixed.
TEST(StateDigestOf, ItsValuesAreFixed) {
  EXPECT_EQ(outer_sync::digest_of(std::span<const float>()), 0U);
  EXPECT_EQ(mixed(0, 0), 0xe220a8397b1dcdafU) << "the first number of SplitMix64 with seed 0";
}

// ---- rounds ----

TEST(CheckedRounds, AreEverySixteenthAndNotOfAllFragmentsAtOnce) {
  std::size_t of_one = 0;
  for (Round round = 1; round <= 160; ++round) {
    std::size_t at_once = 0;
    for (FragmentId p = 0; p < 16; ++p) at_once += is_checked(p, round) ? 1 : 0;
    EXPECT_EQ(at_once, 1U) << "round " << round;
    of_one += is_checked(3, round) ? 1 : 0;
  }
  EXPECT_EQ(of_one, 10U);
}

// ---- the comparison ----

constexpr FragmentId fragment = 1;
StateDigest reported(std::uint64_t digest, Round round = 15) { return {fragment, round, digest}; }

TEST(StateDigestsCompared, TheMajorityIsRight) {
  StateDigests digests;
  const std::set<std::string> three{"a", "b", "c"};
  EXPECT_FALSE(digests.add("a", reported(7), three));
  EXPECT_FALSE(digests.add("b", reported(8), three)) << "c may still decide";
  const auto difference = digests.add("c", reported(7), three);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->round, 15U);
  EXPECT_EQ(difference->fragment, fragment);
  EXPECT_THAT(difference->odd, ElementsAre("b"));
}

TEST(StateDigestsCompared, AMajorityOfTheViewNeedNotWaitForTheRest) {
  StateDigests digests;
  const std::set<std::string> five{"a", "b", "c", "d", "e"};
  EXPECT_FALSE(digests.add("a", reported(7), five));
  EXPECT_FALSE(digests.add("b", reported(7), five));
  EXPECT_FALSE(digests.add("c", reported(8), five));
  EXPECT_THAT(digests.add("d", reported(7), five)->odd, ElementsAre("c"));
  EXPECT_THAT(digests.add("e", reported(9), five)->odd, ElementsAre("c", "e"))
      << "the late digest must also count as odd";
}

TEST(StateDigestsCompared, OfTwoThatDifferNobodyCanTell) {
  StateDigests digests;
  const std::set<std::string> two{"a", "b"};
  EXPECT_FALSE(digests.add("a", reported(7), two));
  const auto difference = digests.add("b", reported(8), two);
  ASSERT_TRUE(difference);
  EXPECT_TRUE(difference->odd.empty());
}

TEST(StateDigestsCompared, WhatIsNotOfTheViewDoesNotCount) {
  StateDigests digests;
  EXPECT_FALSE(digests.add("a", reported(7), {"a", "b"}));
  EXPECT_FALSE(digests.add("stranger", reported(8), {"a", "b"}));
  EXPECT_FALSE(digests.add("b", reported(7), {"a", "b"}));
  EXPECT_FALSE(digests.add("c", reported(8), {"c"})) << "a and b have left";
  digests.clear();
  EXPECT_FALSE(digests.add("b", reported(9), {"a", "b"})) << "the digests are of different views";
}

TEST(StateDigestsCompared, OldRoundsAreForgotten) {
  StateDigests digests;
  const std::set<std::string> two{"a", "b"};
  for (Round round = 15; round < 15 + 16 * 8; round += 16)
    EXPECT_FALSE(digests.add("a", reported(7, round), two));
  EXPECT_FALSE(digests.add("b", reported(8, 15), two))
      << "a digest that comes this late has nothing to be compared with";
  EXPECT_TRUE(digests.add("b", reported(8, 15 + 16 * 7), two));
}

// ---- the coordinator ----

Heartbeat beat_with_digest(std::uint64_t digest, ViewNumber view = 1) {
  Heartbeat heartbeat{.number = 1, .view = view, .unreachable = {}, .fragments = {}, .health = {}};
  heartbeat.digests = {reported(digest)};
  return heartbeat;
}

TEST(CheckedRun, TheOddOneTakesTheStateAnewAndTheOthersGoOn) {
  CoordinatorHarness harness(3);
  harness.run_all({"eu-1", "eu-2", "us-1"});
  harness.receive(1, beat_with_digest(7));
  harness.receive(2, beat_with_digest(8));
  EXPECT_FALSE(harness.last<Evicted>(2));
  harness.receive(3, beat_with_digest(7));
  EXPECT_FALSE(harness.ended);
  ASSERT_TRUE(harness.last<Evicted>(2));
  EXPECT_THAT(harness.last<Evicted>(2)->reason,
              AllOf(HasSubstr("differ from those of the majority"), HasSubstr("round 15 of fragment 1")));
  EXPECT_THAT(harness.said, testing::Contains(HasSubstr("eu-2 must copy the state from others")));
  harness.seal_all({1, 3});
  EXPECT_EQ(harness.last<NewView>(1)->view.members.size(), 2U);
}

TEST(CheckedRun, OfTwoThatDifferItEndsAndSaysWhatToDo) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, beat_with_digest(7));
  harness.receive(2, beat_with_digest(8));
  ASSERT_TRUE(harness.ended);
  EXPECT_EQ(harness.ended->how, Ended::How::diverged);
  EXPECT_THAT(harness.ended->reason, AllOf(HasSubstr("eu-1, us-1 differ after round 15 of fragment 1"),
                                           HasSubstr("resume the run from its last common checkpoint")));
}

TEST(CheckedRun, ReportsOfAnotherViewAreNotCompared) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(1, beat_with_digest(7));
  harness.receive(2, beat_with_digest(8, 0));
  EXPECT_FALSE(harness.ended);
}

TEST(CheckedRun, AFragmentThatTheRunDoesNotHaveBreaksTheProtocol) {
  CoordinatorHarness harness(3);
  harness.run_all({"eu-1", "eu-2", "us-1"});
  auto heartbeat = beat_with_digest(7);
  heartbeat.digests.front().fragment = 2;
  harness.receive(1, heartbeat);
  EXPECT_THAT(harness.refusal(1), HasSubstr("a digest of fragment 2 of 2"));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol

// ---- the outer loop ----

namespace isthmus::outer_sync {
namespace {

TEST(CheckedReplicas, AllReportTheSameAndAFlippedBitIsSeen) {
  auto config = config_of(2, 4, 1, 0.5);
  Replicas run(config, layout_of(2), 3, random_step);
  run.train(4 * 20);
  ASSERT_GE(run.digests(0).size(), 2U) << "each fragment once";
  EXPECT_EQ(run.digests(1), run.digests(0));
  EXPECT_EQ(run.digests(2), run.digests(0));
  for (const auto& reported : run.digests(0))
    EXPECT_TRUE(protocol::is_checked(reported.fragment, reported.round));

  const auto snapshot = run.at(1).loop.snapshot(0);
  auto theta = *snapshot.theta;
  theta[5] += 0.25F;  // so large that the next round cannot round it away
  auto odd = snapshot;
  odd.theta = std::make_shared<const AlignedVector<float>>(theta);
  run.at(1).loop.install(odd);
  const auto before = run.digests(0).size();
  run.train(4 * 40);
  ASSERT_GT(run.digests(0).size(), before);
  EXPECT_EQ(run.digests(2), run.digests(0));
  EXPECT_NE(run.digests(1), run.digests(0));
}

}  // namespace
}  // namespace isthmus::outer_sync
