// Receipts of one round become few lines.

#include "run/audit/receipt_groups.h"

#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

#include "run/audit/audit_lines.h"

namespace isthmus::app {
namespace {

using outer_sync::ChunkId;
using outer_sync::protocol::Receipt;
using outer_sync::protocol::Received;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Digest digest_of(std::uint8_t first) {
  Digest digest{};
  digest.bytes[7] = first;  // the last of the bytes that are kept
  return digest;
}

Received from(const std::string& member, std::uint8_t byte = 0, bool kept = true) {
  Received received{.member = member, .weight = 8, .kept = kept, .bytes = digest_of(byte)};
  received.sketch.fill(static_cast<float>(byte));
  return received;
}

Receipt receipt(std::uint64_t round, ChunkId chunk, std::uint32_t of, std::vector<Received> contributions) {
  return {.fragment = 1,
          .round = round,
          .chunk = chunk,
          .of = of,
          .result = digest_of(static_cast<std::uint8_t>(chunk)),
          .contributions = std::move(contributions)};
}

TEST(ReceiptGroups, ARoundIsOneLineWhenItsLastChunkIsThere) {
  ReceiptGroups groups;
  EXPECT_THAT(groups.add(receipt(4, 3, 3, {from("eu", 1), from("us", 2)})), IsEmpty());
  EXPECT_THAT(groups.add(receipt(4, 7, 3, {from("eu", 3), from("us", 4)})), IsEmpty());
  const auto lines = groups.add(receipt(4, 5, 3, {from("eu", 5), from("us", 6)}));
  ASSERT_THAT(lines, SizeIs(1));
  const auto& line = lines.front();
  EXPECT_EQ(line.fragment, 1U);
  EXPECT_EQ(line.round, 4U);
  EXPECT_THAT(line.chunks, ElementsAre(3, 7, 5));
  EXPECT_THAT(line.results, ElementsAre(3, 7, 5));
  ASSERT_THAT(line.contributions, SizeIs(2));
  EXPECT_EQ(line.contributions[1].member, "us");
  EXPECT_EQ(line.contributions[1].weight, 8U);
  EXPECT_THAT(line.contributions[1].bytes, ElementsAre(2, 4, 6));
  EXPECT_THAT(line.contributions[1].sketch, ::testing::Each(12.0F)) << "the sum over the chunks";
  EXPECT_THAT(groups.rest(), IsEmpty());
}

TEST(ReceiptGroups, ChunksWithOtherMembersAreInAnotherLine) {
  ReceiptGroups groups;
  static_cast<void>(groups.add(receipt(4, 0, 3, {from("eu"), from("us")})));
  static_cast<void>(groups.add(receipt(4, 1, 3, {from("eu")})));  // us was late
  const auto lines = groups.add(receipt(4, 2, 3, {from("eu"), from("us", 0, false)}));
  ASSERT_THAT(lines, SizeIs(3));
  for (ChunkId k = 0; k < 3; ++k) EXPECT_THAT(lines[k].chunks, ElementsAre(k));
}

TEST(ReceiptGroups, ARoundThatNeverBecomesCompleteIsWrittenWithTheNext) {
  ReceiptGroups groups;
  static_cast<void>(groups.add(receipt(4, 0, 2, {from("eu")})));
  const auto lines = groups.add(receipt(5, 0, 2, {from("eu")}));  // the owners changed in round 4
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].round, 4U);
  const auto rest = groups.rest();
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].round, 5U);
}

/// A line with a chunk twice would have a sketch of both contributions.
TEST(ReceiptGroups, ARepeatedChunkIsInAnotherLine) {
  ReceiptGroups groups;
  static_cast<void>(groups.add(receipt(4, 0, 3, {from("eu", 1)})));
  static_cast<void>(groups.add(receipt(4, 0, 3, {from("eu", 2)})));
  const auto lines = groups.rest();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0].contributions[0].sketch, ::testing::Each(1.0F));
  EXPECT_THAT(lines[1].contributions[0].sketch, ::testing::Each(2.0F));
}

TEST(ReceiptGroups, FragmentsDoNotDisturbEachOther) {
  ReceiptGroups groups;
  auto other = receipt(9, 8, 1, {from("eu")});
  other.fragment = 2;
  static_cast<void>(groups.add(receipt(4, 0, 2, {from("eu")})));
  EXPECT_THAT(groups.add(other), SizeIs(1));
  EXPECT_THAT(groups.add(receipt(4, 1, 2, {from("eu")})), SizeIs(1));
}

/// The coordinator gathers no longer lines, and each contribution is in exactly one.
TEST(ReceiptGroups, LinesStayBelowTheLimitWhateverTheNumbers) {
  for (const std::size_t members : {1, 2, 24, 25, 500}) {
    constexpr ChunkId chunks = 1000;
    ReceiptGroups groups;
    std::vector<Received> contributions;
    for (std::size_t m = 0; m < members; ++m) {
      contributions.push_back(from(std::string(60, 'x') + std::to_string(m), 255, false));
      contributions.back().weight = std::uint64_t{1} << 40U;
    }
    std::vector<AuditReceipts> lines;
    for (ChunkId k = 0; k < chunks; ++k) {
      for (auto& line : groups.add(receipt(4, 100'000 + k, chunks, contributions)))
        lines.push_back(std::move(line));
    }
    std::size_t held = 0;
    for (const auto& line : lines) {
      EXPECT_LT(audit_json(line).dump().size(), 16'384U);
      held += line.chunks.size() * line.contributions.size();
    }
    EXPECT_EQ(held, members * chunks);
  }
}

}  // namespace
}  // namespace isthmus::app
