// Whether owners sent the means of what they received: with receipts and results of reducers, honest and not,
// and of real runs.

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "audit/owners.h"
#include "audit/verdict.h"
#include "audited_run.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/engine/sketch.h"
#include "isthmus/quant/passes.h"
#include "run/audit/receipt_groups.h"

namespace isthmus::app {
namespace {

using outer_sync::Reducer;
using outer_sync::protocol::CodecPlan;
using outer_sync::protocol::SharedBytes;
using outer_sync::protocol::Sketch;
using quant::CodecKind;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::uint64_t chunk_elements = 4096;
constexpr std::uint64_t chunks = 4;
const outer_sync::FragmentLayout layout({{0, chunks* chunk_elements}}, chunk_elements);

using Values = std::vector<float>;

/// From a bell-shaped distribution; rarely far larger ones, as in outer gradients.
Values random_values(std::uint64_t seed, std::uint64_t round, std::uint64_t chunk) {
  Values values(chunk_elements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto u = random_unit(seed, round, 2 * (chunk * chunk_elements + i));
    const auto v = random_unit(seed, round, 2 * (chunk * chunk_elements + i) + 1);
    const auto bell =
        std::sqrt(-2 * std::log(1 - 0.999999F * u)) * std::cos(2 * std::numbers::pi_v<float> * v);
    values[i] = bell * bell * bell;
  }
  return values;
}

/// Members with similar outer gradients, and one owner for all chunks.
struct World {
  quant::CodecSpec codec = quant::default_spec(CodecKind::lloyd4);
  std::size_t members = 2;
  std::uint64_t rounds = 20;
  float largest = 1;  ///< size of the last member's outer gradients; that of the others is 1
  bool error_feedback = false;
  std::vector<std::uint64_t> weights = std::vector<std::uint64_t>(members, 1000);
  float persistent = 0;       ///< size of a part of the outer gradients that all rounds have in common
  std::uint64_t audited = 1;  ///< the first round under audit
  /// Changes what the owner reduces, and with which weights.
  std::function<void(std::vector<Values>&, std::vector<std::uint64_t>&, std::uint64_t round)> lie = {};
  /// Size of all outer gradients in a round.
  std::function<float(std::uint64_t round)> size = [](std::uint64_t) { return 1.0F; };
  /// Changes the owner's receipts.
  std::function<void(std::vector<AuditReceipts>&)> forge = {};

  [[nodiscard]] SharedBytes encoded(const Values& values, std::uint64_t round) const {
    Bytes bytes(quant::encoded_size(codec, values.size()));
    EXPECT_FALSE(quant::encode(codec, values, {}, {quant::noise_key(1, 0, round), 0}, bytes));
    return std::make_shared<const Bytes>(std::move(bytes));
  }

  [[nodiscard]] std::vector<Values> gradients(std::uint64_t round, std::uint64_t chunk) const {
    const auto common = random_values(1000, round, chunk), always = random_values(1000, 0, chunk);
    std::vector<Values> out;
    for (std::size_t m = 0; m < members; ++m) {
      auto& own = out.emplace_back(random_values(m, round, chunk));
      const float factor = size(round) * (m + 1 == members ? largest : 1);
      for (std::size_t i = 0; i < own.size(); ++i)
        own[i] = factor * (own[i] + 0.5F * common[i] + persistent * always[i]);
    }
    return out;
  }

  [[nodiscard]] OwnerVerdict verdict() const {
    const CodecPlan plan{.codec = codec, .warmup_codec = codec, .error_feedback = error_feedback, .seed = 1};
    Reducer reducer(layout, plan);
    OwnerAudit audit(plan);
    std::set<std::string> known;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      ReceiptGroups groups;
      std::vector<AuditReceipts> lines;
      std::map<outer_sync::ChunkId, Sketch> results;
      for (outer_sync::ChunkId chunk = 0; chunk < chunks; ++chunk) {
        auto values = gradients(round, chunk);
        outer_sync::protocol::Receipt receipt{.round = round, .chunk = chunk, .of = chunks};
        std::vector<SharedBytes> reduced;
        for (std::size_t m = 0; m < members; ++m) {
          reduced.push_back(encoded(values[m], round));
          auto& received = receipt.contributions.emplace_back(reducer.received(chunk, round, *reduced[m]));
          received.member = "m" + std::to_string(m);
          received.weight = weights[m];
          known.insert(received.member);
        }
        auto used = weights;
        if (lie) {
          lie(values, used, round);
          for (std::size_t m = 0; m < members; ++m) reduced[m] = encoded(values[m], round);
        }
        const auto made = reducer.received(chunk, round, *reducer.reduce(chunk, round, reduced, used).bytes);
        receipt.result = made.bytes;
        results[chunk] = made.sketch;
        for (auto& line : groups.add(receipt)) lines.push_back(std::move(line));
      }
      for (auto& line : groups.rest()) lines.push_back(std::move(line));
      if (forge) forge(lines);
      if (round < audited) continue;
      for (const auto& line : lines) audit.add("owner", line, results);
    }
    return audit.verdicts(known).at(0);
  }
};

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
    EXPECT_THAT(world.verdict().wrong, IsEmpty()) << quant::to_string(kind);
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

using Weights = std::vector<std::uint64_t>;

/// Codecs with which a lie about shares shows.
constexpr CodecKind even_codecs[] = {CodecKind::fp32, CodecKind::int8, CodecKind::lloyd4, CodecKind::lloyd2};

TEST(OwnerAudit, NamesAnOwnerThatCountsOneMemberMoreThanItsTokensGive) {
  for (const auto kind : even_codecs) {
    World world{.codec = quant::default_spec(kind), .members = 4, .rounds = 60};
    world.lie = [](std::vector<Values>&, Weights& weights, std::uint64_t) { weights[0] *= 2; };
    EXPECT_THAT(world.verdict().wrong, Contains(HasSubstr("it counted m0 1.")))
        << quant::to_string(kind) << ": 1.6 times its share";
  }
}

TEST(OwnerAudit, NamesAnOwnerOfManyThatCountsItselfTwice) {
  World world{.members = 16, .rounds = 60};
  world.lie = [](std::vector<Values>&, Weights& weights, std::uint64_t) { weights[0] *= 2; };
  EXPECT_THAT(world.verdict().wrong, Contains(HasSubstr("it counted m0 1.")));
}

TEST(OwnerAudit, NamesAnOwnerOfManyThatLeavesOutAMember) {
  World world{.members = 16, .rounds = 60};
  world.lie = [](std::vector<Values>&, Weights& weights, std::uint64_t) { weights[1] = 0; };
  EXPECT_THAT(world.verdict().wrong, Contains(HasSubstr("it counted m1 ")));
}

TEST(OwnerAudit, NamesAnOwnerThatLeavesOutAMember) {
  for (const auto kind : even_codecs) {
    World world{.codec = quant::default_spec(kind)};
    world.lie = [](std::vector<Values>&, Weights& weights, std::uint64_t) { weights[1] = 0; };
    EXPECT_THAT(world.verdict().wrong, Contains(HasSubstr("it counted m1 "))) << quant::to_string(kind);
  }
}

/// Multiplies all values.
void scale(std::vector<Values>& gradients, float factor) {
  for (auto& values : gradients) {
    for (auto& x : values) x *= factor;
  }
}

TEST(OwnerAudit, NamesAnOwnerThatSendsSomethingElseThanMeans) {
  const std::pair<const char*, decltype(World::lie)> lies[] = {
      {"nothing", [](auto& gradients, auto&, auto) { scale(gradients, 0); }},
      {"the opposite", [](auto& gradients, auto&, auto) { scale(gradients, -1); }},
      {"a third of it", [](auto& gradients, auto&, auto) { scale(gradients, 0.33F); }},
      {"noise",
       [](auto& gradients, auto&, auto round) {
         for (std::size_t m = 0; m < gradients.size(); ++m) gradients[m] = random_values(m, round, 99);
       }},
      {"the results of the round before", [](auto& gradients, auto&, auto round) {
         for (std::size_t m = 0; m < gradients.size(); ++m) gradients[m] = random_values(m, round - 1, 0);
       }}};
  for (const auto kind : {CodecKind::fp32, CodecKind::lloyd4, CodecKind::lloyd2, CodecKind::sign}) {
    for (const auto& [name, lie] : lies) {
      const World world{.codec = quant::default_spec(kind), .rounds = 60, .lie = lie};
      EXPECT_THAT(world.verdict().wrong, Not(IsEmpty())) << quant::to_string(kind) << " of " << name;
    }
  }
}

TEST(OwnerAudit, LinesThatContradictEachOtherAreNoExcuse) {
  // An invented member in another line about the first chunk, before or after the true one.
  for (const bool before : {false, true}) {
    World world;
    world.forge = [before](std::vector<AuditReceipts>& lines) {
      auto decoy = lines.front();
      decoy.chunks.resize(1);
      decoy.results.resize(1);
      decoy.contributions.resize(1);
      decoy.contributions[0].member = "ghost";
      decoy.contributions[0].bytes.resize(1);
      lines.insert(before ? lines.begin() : lines.end(), decoy);
    };
    const auto verdict = world.verdict();
    EXPECT_EQ(verdict.results, 0U);
    EXPECT_EQ(verdict.contradictory, world.rounds * chunks);
    EXPECT_EQ(status_of(verdict), 3);
  }
}

TEST(OwnerAudit, ARepeatedRoundContradictsNothing) {
  // The view ended after two chunks, and the next one repeated the round.
  World world;
  world.forge = [](std::vector<AuditReceipts>& lines) {
    auto part = lines.front();
    part.chunks.resize(2);
    part.results.resize(2);
    for (auto& received : part.contributions) received.bytes.resize(2);
    lines.insert(lines.begin(), part);
  };
  const auto verdict = world.verdict();
  EXPECT_EQ(verdict.results, world.rounds);
  EXPECT_EQ(verdict.contradictory, 0U);
  EXPECT_THAT(verdict.wrong, IsEmpty());
}

TEST(OwnerAudit, AnInventedMemberIsListed) {
  World world;
  world.lie = [](std::vector<Values>&, Weights& weights, std::uint64_t) { weights[0] *= 2; };
  world.forge = [](std::vector<AuditReceipts>& lines) {
    for (auto& line : lines) {
      line.contributions.push_back(line.contributions[0]);
      line.contributions.back().member = "ghost";
    }
  };
  const auto verdict = world.verdict();
  EXPECT_THAT(verdict.wrong, IsEmpty()) << "the results fit the receipts";
  EXPECT_THAT(verdict.unknown, ElementsAre("ghost"));
  EXPECT_EQ(status_of(verdict), 3);
}

TEST(OwnerAudit, TheSameReceiptsCountOnce) {
  World world;
  world.forge = [](std::vector<AuditReceipts>& lines) { lines.push_back(lines.front()); };
  const auto verdict = world.verdict();
  EXPECT_EQ(verdict.results, world.rounds);
  EXPECT_THAT(verdict.wrong, IsEmpty());
}

TEST(OwnerAudit, NamesTheRoundWhoseResultIsFarFromItsMean) {
  World world;
  world.lie = [](std::vector<Values>& gradients, Weights&, std::uint64_t round) {
    if (round == 7) gradients[0][100] = 1e4F;  // as if a bit had flipped
  };
  const auto verdict = world.verdict();
  ASSERT_THAT(verdict.wrong, SizeIs(1)) << "the other results are as they should be";
  EXPECT_THAT(verdict.wrong.front(), HasSubstr("fragment 0 round 7"));
  EXPECT_EQ(verdict.round, 7U);
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

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(AuditOf, AnOwnerThatDoesNotCountContributionsByTheirTokensIsNamed) {
  run();
  edit_records(site, "replica-1", [](json& record) {
    if (!record.contains("received")) return;
    for (auto& contribution : record["contributions"]) {
      if (contribution["member"] == "replica-0")
        contribution["weight"] = contribution["weight"].get<std::uint64_t>() * 4;
    }
  });
  // Its own weights are true, and those of replica-0 are not under audit.
  const auto found = audit(site, {"--member", "replica-1"});
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  EXPECT_THAT(found.result.output,
              AllOf(HasSubstr("ok: replica-1"), HasSubstr("results of replica-0 compared"),
                    Not(HasSubstr("counted replica-0 1")), HasSubstr("it counted replica-1")));
  for (const auto& owner : found.owners) EXPECT_EQ(owner["status"], owner["owner"] == "replica-1" ? 5 : 0);
}

TEST_F(AuditOf, AReceiptWithASketchOfOtherBytesNamesItsOwner) {
  run();
  edit_records(site, "replica-1", [](json& record) {
    if (record.value("received", 0) != 3) return;
    for (auto& contribution : record["contributions"]) {
      if (contribution["member"] == "replica-0") contribution["sketch"] = std::string(256, '0');
    }
  });
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 0), 3U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  EXPECT_THAT(found.result.output,
              AllOf(HasSubstr("WRONG: "), HasSubstr("results of replica-1"),
                    HasSubstr("the contribution of replica-0"), HasSubstr("a sketch of other")));
}

}  // namespace
}  // namespace isthmus
