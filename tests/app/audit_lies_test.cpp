// Whether owners sent the means of what they received: owners that did not, in receipts of reducers and of
// real runs.

#include <gmock/gmock.h>

#include <utility>

#include "audit/verdict.h"
#include "audited_owner.h"
#include "audited_run.h"

namespace isthmus::app {
namespace {

using namespace audited_owner;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

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
