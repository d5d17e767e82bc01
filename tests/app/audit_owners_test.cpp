// Whether owners sent the means of what they received: honest ones, and what an audit makes of their
// receipts.

#include <gmock/gmock.h>

#include <limits>

#include "audit/verdict.h"
#include "audited_owner.h"

namespace isthmus::app {
namespace {

using namespace audited_owner;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(OwnerAudit, FindsNothingWrongWithAnHonestOwner) {
  for (const auto& codec : quant::codecs) {
    for (const std::size_t members : {2, 8}) {
      for (const float largest : {0.1F, 1.0F, 4.0F, 30.0F}) {
        for (const bool error_feedback : {false, true}) {
          const World world{.codec = quant::default_spec(codec.kind),
                            .members = members,
                            .rounds = members == 2 ? 30U : 4U,
                            .largest = largest,
                            .error_feedback = error_feedback};
          const auto verdict = world.verdict();
          EXPECT_THAT(verdict.wrong, IsEmpty())
              << codec.name << ", " << members << " members, the last " << largest
              << " times as large, error feedback " << error_feedback;
          EXPECT_EQ(verdict.results, world.rounds);
          EXPECT_EQ(verdict.chunks, world.rounds * chunks);
          EXPECT_EQ(verdict.not_compared, 0U);
          EXPECT_EQ(verdict.used.size(), members);
          EXPECT_THAT(verdict.unknown, IsEmpty());
        }
      }
    }
  }
}

TEST(OwnerAudit, FindsNothingWrongWithOtherSettingsOfACodec) {
  for (const auto kind : {CodecKind::int8, CodecKind::lloyd4, CodecKind::sign}) {
    auto clipped = quant::default_spec(kind), stochastic = clipped, large = clipped;
    clipped.clip = 0.1F;
    stochastic.rounding = quant::Rounding::stochastic;
    large.block = 4096;
    for (const auto& codec : {clipped, stochastic, large}) {
      for (const std::size_t members : {2, 8})
        EXPECT_THAT((World{.codec = codec, .members = members}.verdict().wrong), IsEmpty())
            << quant::to_string(kind) << ", clip " << codec.clip << ", block " << codec.block;
    }
  }
}

TEST(OwnerAudit, ReceiptsOfManyMembersAreOneMean) {
  const World world{.members = 51, .rounds = 6};
  const auto verdict = world.verdict();
  EXPECT_THAT(verdict.wrong, IsEmpty());
  EXPECT_EQ(verdict.chunks, world.rounds * chunks);
  EXPECT_NEAR(verdict.gain, 1, 0.05);
  EXPECT_EQ(verdict.used.size(), 51U);
}

TEST(OwnerAudit, ResidualsOfEarlierRoundsAreNoLie) {
  // The owner adds its residual to means that are far smaller, or zero.
  for (const auto kind : {CodecKind::int8, CodecKind::lloyd4, CodecKind::lloyd2, CodecKind::sign}) {
    for (const float later : {0.0F, 1e-3F, 0.3F}) {
      for (const std::uint64_t audited : {1, 10, 11}) {
        for (const std::uint64_t rounds : {11, 13, 40}) {
          const World world{.codec = quant::default_spec(kind),
                            .rounds = rounds,
                            .error_feedback = true,
                            .audited = audited,
                            .size = [later](std::uint64_t round) { return round < 10 ? 1.0F : later; }};
          EXPECT_THAT(world.verdict().wrong, IsEmpty())
              << quant::to_string(kind) << ", " << later << ", rounds " << audited << " to " << rounds;
        }
      }
    }
  }
}

TEST(OwnerAudit, ResidualsThatGrowAreNoLie) {
  for (const auto kind : {CodecKind::lloyd3, CodecKind::lloyd2, CodecKind::sign, CodecKind::topk}) {
    const World world{.codec = quant::default_spec(kind),
                      .members = 6,
                      .rounds = 40,
                      .error_feedback = true,
                      .persistent = 1,
                      .audited = 20};
    const auto verdict = world.verdict();
    EXPECT_THAT(verdict.wrong, IsEmpty()) << quant::to_string(kind);
    EXPECT_GT(verdict.results, 10U) << quant::to_string(kind) << ": most of 21 are compared";
  }
}

TEST(OwnerAudit, OneResultOfManyMembersShowsNoShares) {
  const auto verdict = World{.members = 20, .rounds = 1}.verdict();
  EXPECT_THAT(verdict.wrong, IsEmpty());
  EXPECT_THAT(verdict.used, IsEmpty());
}

TEST(OwnerAudit, MembersWithEqualContributionsHaveNoShares) {
  World world{.members = 3, .rounds = 20};
  world.forge = [](std::vector<AuditReceipts>& lines) {
    for (auto& line : lines) line.contributions[1].sketch = line.contributions[0].sketch;
  };
  EXPECT_THAT(world.verdict().used, IsEmpty());
}

TEST(OwnerAudit, TheWeightsAreThoseOfTheTokens) {
  const auto verdict = World{.members = 3, .weights = {5000, 1000, 1000}}.verdict();
  EXPECT_THAT(verdict.wrong, IsEmpty());
  EXPECT_NEAR(verdict.distance, 0.14, 0.06) << "of 4bit";
  for (const auto& used : verdict.used) EXPECT_NEAR(used.share, 1, 6 * used.deviation + 0.02) << used.member;
}

TEST(OwnerAudit, AFewResultsAreEnough) {
  for (const std::uint64_t rounds : {1, 2, 3}) {
    for (std::uint64_t weight = 100; weight < 1000; weight += 100) {
      const World world{.rounds = rounds, .weights = {1000, weight}};
      EXPECT_THAT(world.verdict().wrong, IsEmpty()) << rounds << " rounds, weight " << weight;
    }
  }
}

CodecPlan plan_of(CodecKind kind) {
  const auto spec = quant::default_spec(kind);
  return {.codec = spec, .warmup_codec = spec};
}
Sketch all(float value) {
  Sketch sketch{};
  sketch.fill(value);
  return sketch;
}

TEST(OwnerAudit, RejectedContributionsAreInNoMean) {
  OwnerAudit audit(plan_of(CodecKind::fp32));
  AuditReceipts line{.fragment = 2, .round = 3, .chunks = {5}, .results = {0}};
  line.contributions = {{.member = "a", .weight = 1, .bytes = {0}, .sketch = all(1)},
                        {.member = "b", .weight = 1, .kept = false, .bytes = {0}, .sketch = all(10)}};
  audit.add("owner", line, {{5, all(1)}});
  const auto verdict = audit.verdicts({"a", "b"}).at(0);
  EXPECT_THAT(verdict.wrong, IsEmpty());
  EXPECT_EQ(verdict.results, 1U);
  EXPECT_EQ(verdict.distance, 0);
}

TEST(OwnerAudit, ValuesThatAreNotFiniteAreNoMean) {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (const auto kind : {CodecKind::topk, CodecKind::lloyd4}) {
    for (const float value : values) {
      for (const bool in_result : {false, true}) {
        OwnerAudit audit(plan_of(kind));
        AuditReceipts line{.fragment = 0, .round = 1, .chunks = {0}, .results = {0}};
        line.contributions = {{.member = "a", .bytes = {0}, .sketch = all(in_result ? 1 : value)}};
        audit.add("owner", line, {{0, all(in_result ? value : 1)}});
        EXPECT_THAT(audit.verdicts({"a"}).at(0).wrong, SizeIs(1))
            << quant::to_string(kind) << value << in_result;
      }
    }
  }
}

TEST(OwnerAudit, ResultsThatAreNotInTheLogAreNotCompared) {
  OwnerAudit audit(plan_of(CodecKind::lloyd4));
  AuditReceipts line{.fragment = 0, .round = 1, .chunks = {0, 1}, .results = {0, 0}};
  line.contributions = {{.member = "a", .bytes = {0, 0}, .sketch = all(1)}};
  audit.add("owner", line, {{0, all(1)}});
  const auto verdict = audit.verdicts({"a"}).at(0);
  EXPECT_EQ(verdict.not_compared, 2U);
  EXPECT_EQ(verdict.contradictory, 0U);
  EXPECT_EQ(status_of(verdict), 3);
  EXPECT_EQ(verdict.results, 0U);
}

TEST(OwnerAudit, FindingsOfSeveralIntervalsAreOne) {
  AuditReceipts line{.fragment = 0, .round = 1, .chunks = {0}, .results = {0}};
  line.contributions = {{.member = "a", .bytes = {0}, .sketch = all(1)}};
  OwnerAudit first(plan_of(CodecKind::lloyd4)), second(plan_of(CodecKind::lloyd4)), both;
  first.add("owner", line, {{0, all(1)}});
  second.add("owner", line, {{0, all(1)}});
  line.round = 2;
  second.add("owner", line, {{0, all(1)}});
  both.add(first);
  both.add(second);
  EXPECT_EQ(both.verdicts({"a"}).at(0).results, 2U);
}

TEST(OwnerAudit, ASketchOfOtherBytesIsFalse) {
  OwnerAudit audit(plan_of(CodecKind::lloyd4));
  audit.add({.owner = "us", .member = "eu", .fragment = 1, .round = 2});
  const auto verdicts = audit.verdicts({});
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].owner, "us");
  EXPECT_THAT(verdicts[0].wrong, Contains(HasSubstr("eu to fragment 1 round 2")));
}

}  // namespace
}  // namespace isthmus::app
