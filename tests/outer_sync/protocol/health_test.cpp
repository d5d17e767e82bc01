// Comparison of contributions: an owner's sums, and the coordinator's verdicts, fed by hand.

#include "isthmus/outer_sync/protocol/health.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr double infinity = std::numeric_limits<double>::infinity();

Measured measured(const std::vector<double>& squares) {
  return {.squares = squares, .dots = std::vector<double>(squares.size(), 2), .mean_squares = 4};
}

TEST(OwnedHealth, ARoundIsCompleteWithAllChunksThatAreOwned) {
  OwnedHealth health;
  health.begin({2, 1});
  health.add(0, 1, {7, 8}, measured({1, 4}));
  EXPECT_THAT(health.take(), IsEmpty());
  health.add(0, 1, {7}, measured({2}));
  const auto rounds = health.take();
  ASSERT_THAT(rounds, SizeIs(1));
  EXPECT_EQ(rounds[0].round, 1U);
  EXPECT_EQ(rounds[0].chunks, 2U);
  EXPECT_EQ(rounds[0].mean_squares, 8);
  ASSERT_THAT(rounds[0].contributors, SizeIs(2));
  EXPECT_EQ(rounds[0].contributors[0].chunks, 2U);
  EXPECT_EQ(rounds[0].contributors[0].squares, 3);
  EXPECT_EQ(rounds[0].contributors[0].dot, 4);
  EXPECT_EQ(rounds[0].contributors[1].chunks, 1U) << "8 was late for the second chunk";
  EXPECT_THAT(health.take(), IsEmpty()) << "each round must be reported once";
}

TEST(OwnedHealth, OfSeveralTheRoundestIsGiven) {
  OwnedHealth health;
  health.begin({1, 1});
  for (Round r = 5; r <= 11; ++r) health.add(0, r, {7}, measured({1}));
  health.add(1, 3, {7}, measured({1}));
  const auto rounds = health.take();
  ASSERT_THAT(rounds, SizeIs(2));
  EXPECT_EQ(rounds[0].round, 8U);
  EXPECT_EQ(rounds[1].round, 3U);
}

TEST(OwnedHealth, AnotherViewBeginsAnew) {
  OwnedHealth health;
  health.begin({2});
  health.add(0, 1, {7}, measured({1}));
  health.begin({2});
  health.add(0, 1, {7}, measured({1}));
  EXPECT_THAT(health.take(), IsEmpty());
}

class RunHealthTest : public testing::Test {
 protected:
  // Fragment 0 has chunks 0 and 1, fragment 1 has chunk 2. "a" owns chunk 0, "b" the others, "c" none.
  const FragmentLayout layout{{{0, 32}, {32, 10}}, 16};
  RunHealthTest() {
    View view{.number = 1, .members = {}, .owners = {0, 1, 1}};
    for (const auto* name : {"a", "b", "c"}) {
      view.members.push_back({name, 1, "", 0});
      ids.push_back(id_of(view.members.back()));
    }
    health.begin(view, layout);
  }
  /// A report on one chunk of the fragment: `squares` of a, b and c, each at this cosine to a mean of norm 1.
  RoundHealth part(FragmentId fragment, Round round, const std::vector<double>& squares,
                   double cosine = 0.5) const {
    RoundHealth out{fragment, round, 1, 1, {}};
    for (std::size_t m = 0; m < squares.size(); ++m) {
      const double dot = std::isfinite(squares[m]) ? cosine * std::sqrt(squares[m]) : 0;
      out.contributors.push_back({ids.at(m), 1, squares[m], dot});
    }
    return out;
  }
  /// Judges a round of fragment 1, which only "b" owns.
  RoundJudged judge(Round round, const std::vector<double>& squares) {
    const auto judged = health.add(ids[1], part(1, round, squares));
    EXPECT_TRUE(judged);
    return judged.value_or(RoundJudged{});
  }
  static std::vector<double> norms(const RoundJudged& round) {
    std::vector<double> out;
    for (const auto& replica : round.replicas) out.push_back(replica.norm);
    return out;
  }

  RunHealth health;
  std::vector<ReplicaId> ids;
};

TEST_F(RunHealthTest, TheOwnersPartsAreAdded) {
  EXPECT_FALSE(health.add(ids[0], part(0, 5, {1, 2, 3})));
  const auto judged = health.add(ids[1], part(0, 5, {3, 2, 1}));
  ASSERT_TRUE(judged);
  EXPECT_EQ(judged->fragment, 0U);
  EXPECT_EQ(judged->round, 5U);
  EXPECT_THAT(norms(*judged), ElementsAre(2, 2, 2));
  EXPECT_EQ(judged->replicas[1].name, "b");
  EXPECT_NEAR(judged->replicas[1].cosine, 0.5, 1e-12) << "of 2 * .5 * sqrt(2) and norms 2 and sqrt(2)";
}

TEST_F(RunHealthTest, RoundsAreNotMixedAndNobodyCountsTwice) {
  EXPECT_FALSE(health.add(ids[0], part(0, 5, {1, 1, 1})));
  EXPECT_FALSE(health.add(ids[1], part(0, 6, {1, 1, 1})));
  EXPECT_FALSE(health.add(ids[0], part(0, 5, {1, 1, 1}))) << "reported twice";
  EXPECT_TRUE(health.add(ids[1], part(0, 5, {1, 1, 1})));
}

TEST_F(RunHealthTest, WhoWasLateForAPartIsNotJudged) {
  EXPECT_FALSE(health.add(ids[0], part(0, 5, {1, 1, 1})));
  const auto judged = health.add(ids[1], part(0, 5, {1, 1}));
  ASSERT_TRUE(judged);
  EXPECT_THAT(judged->replicas, SizeIs(2));
}

TEST_F(RunHealthTest, WhatDoesNotFitTheViewIsPassedOver) {
  const auto refused = [&](ReplicaId owner, const RoundHealth& of) { return !health.add(owner, of); };
  auto good = part(1, 1, {1, 1, 1});
  for (const auto& change : std::vector<std::function<void(RoundHealth&)>>{
           [](auto& p) { p.fragment = 2; }, [](auto& p) { p.chunks = 2; }, [](auto& p) { p.chunks = 0; },
           [](auto& p) { p.mean_squares = std::nan(""); }, [](auto& p) { p.contributors[0].replica = 99; },
           [](auto& p) { p.contributors[0].squares = -1; }, [](auto& p) { p.contributors[0].chunks = 2; },
           [](auto& p) { p.contributors[0].dot = infinity; },
           [](auto& p) { p.contributors.resize(4, p.contributors[0]); }}) {
    auto bad = good;
    change(bad);
    EXPECT_TRUE(refused(ids[1], bad));
  }
  EXPECT_TRUE(refused(ids[0], good)) << "a owns nothing of fragment 1";
  EXPECT_TRUE(refused(99, good)) << "not a member";
  EXPECT_FALSE(refused(ids[1], good));
}

TEST_F(RunHealthTest, AnOutlierIsNamedOnceAndThenNowAndThen) {
  EXPECT_THAT(judge(1, {1, 1, 15}).outliers, IsEmpty()) << "less than four times the median";
  EXPECT_THAT(judge(2, {1, 1, 144}).outliers, ElementsAre("c"));
  EXPECT_THAT(health.take_lines(),
              ElementsAre("c is an outlier: its outer gradient of fragment 1, round 2 is 12 times the median "
                          "(cosine 0.5 to the mean)"));
  std::size_t lines = 0;
  for (Round r = 3; r <= 2 + RunHealth::say_every; ++r) {
    static_cast<void>(judge(r, {1, 1, 144}));
    lines += health.take_lines().size();
  }
  EXPECT_EQ(lines, 1U);
}

TEST_F(RunHealthTest, ItsRecoveryIsSaidWhenEveryFragmentHadTime) {
  static_cast<void>(judge(1, {1, 1, 144}));
  static_cast<void>(judge(2, {1, 1, 1}));
  static_cast<void>(judge(3, {1, 1, 144}));
  EXPECT_THAT(health.take_lines(), SizeIs(1)) << "one normal round in between is not a recovery";
  static_cast<void>(judge(4, {1, 1, 1}));
  static_cast<void>(judge(5, {1, 1, 1}));
  EXPECT_THAT(health.take_lines(),
              ElementsAre("c is no longer an outlier as of fragment 1, round 5; it was one in 2 rounds"));
  static_cast<void>(judge(6, {1, 1, 144}));
  EXPECT_THAT(health.take_lines(), SizeIs(1)) << "it must be reported again";
}

TEST_F(RunHealthTest, TwoHaveNoMedianButInfinityIsAlwaysOne) {
  EXPECT_THAT(judge(1, {1, 1e6}).outliers, IsEmpty());
  EXPECT_THAT(judge(2, {1, infinity}).outliers, ElementsAre("b"));
  EXPECT_THAT(health.take_lines(), ElementsAre(HasSubstr("fragment 1, round 2 is not finite")));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
