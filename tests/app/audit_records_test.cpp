// A member's records in order: which steps between checkpoints can be run again.

#include <gmock/gmock.h>

#include "audit/audit.h"
#include "audit/records.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

using State = AuditStart::State;
using ::testing::IsEmpty;
using ::testing::SizeIs;

AuditCheckpoint checkpoint(std::uint64_t step) { return {.step = step, .sections = {{"agreed", Digest{}}}}; }

/// Ten steps with a round, a snapshot, and its checkpoint.
void train(Journal& journal, std::uint64_t from, bool with_checkpoint = true) {
  for (auto step = from; step < from + 10; ++step)
    journal.add(AuditTrained{.step = step, .samples = {{0, step, step + 1}}});
  journal.add(AuditApplied{.fragment = 0, .round = from / 10 + 1});
  journal.add(AuditSnapshot{from + 10});
  if (with_checkpoint) journal.add(checkpoint(from + 10));
}

TEST(AuditJournal, HasAnIntervalBetweenEachTwoCheckpoints) {
  Journal journal;
  journal.add(AuditStart{.state = State::initial, .machine = {{"build", "a"}}});
  for (const auto from : {0, 10, 20}) train(journal, static_cast<std::uint64_t>(from));
  const auto& intervals = journal.intervals();
  ASSERT_THAT(intervals, SizeIs(2)) << "the initial state is in no checkpoint";
  EXPECT_EQ(intervals[0].begin.step, 10U);
  EXPECT_EQ(intervals[0].end.step, 20U);
  EXPECT_THAT(intervals[0].events, SizeIs(11));
  EXPECT_EQ(intervals[0].rounds(), 1U);
  EXPECT_EQ(intervals[0].machine.at("build"), "a");
}

TEST(AuditJournal, ASnapshotWithoutCheckpointLiesInsideAnInterval) {
  Journal journal;
  journal.add(AuditStart{});
  train(journal, 0);
  train(journal, 10, false);
  train(journal, 20);
  ASSERT_THAT(journal.intervals(), SizeIs(1));
  EXPECT_EQ(journal.intervals()[0].end.step, 30U);
  const auto& events = journal.intervals()[0].events;
  EXPECT_THAT(events, SizeIs(23));
  EXPECT_EQ(std::get<AuditSnapshot>(events.at(11)).step, 20U) << "ranks average their state there";
}

TEST(AuditJournal, ADigestMayArriveAfterLaterSteps) {
  Journal journal;
  journal.add(AuditStart{});
  train(journal, 0, false);
  journal.add(AuditTrained{.step = 10, .samples = {{0, 10, 11}}});
  journal.add(checkpoint(10));
  journal.add(AuditSnapshot{11});
  journal.add(checkpoint(11));
  ASSERT_THAT(journal.intervals(), SizeIs(1));
  EXPECT_THAT(journal.intervals()[0].events, SizeIs(1));
}

TEST(AuditJournal, ARestartGoesBackToItsCheckpoint) {
  Journal journal;
  journal.add(AuditStart{.state = State::initial, .machine = {{"build", "a"}}});
  train(journal, 0);
  train(journal, 10);
  journal.add(AuditTrained{.step = 20, .samples = {{0, 500, 501}}});  // lost
  journal.add(AuditStart{.state = State::checkpoint, .step = 20, .machine = {{"build", "b"}}});
  train(journal, 20);
  ASSERT_THAT(journal.intervals(), SizeIs(2));
  EXPECT_THAT(journal.intervals()[1].events, SizeIs(11));
  EXPECT_EQ(journal.intervals()[1].machine.at("build"), "b");
  journal.add(AuditStart{.state = State::checkpoint, .step = 10});
  EXPECT_THAT(journal.intervals(), IsEmpty()) << "the run has gone back further";
}

/// It may continue on another machine or with another config, which the digest would have had.
TEST(AuditJournal, ARestartFromACheckpointWithoutDigestBeginsAnew) {
  Journal journal;
  journal.add(AuditStart{});
  train(journal, 0);
  train(journal, 10, false);  // killed after the file was written, and before the line
  journal.add(AuditStart{.state = State::checkpoint, .step = 20});
  train(journal, 20);
  EXPECT_THAT(journal.intervals(), IsEmpty());
  train(journal, 30);
  ASSERT_THAT(journal.intervals(), SizeIs(1));
  EXPECT_EQ(journal.intervals()[0].begin.step, 30U);
}

TEST(AuditJournal, HistoryThatTheRunAbandonedIsVoid) {
  Journal journal;
  journal.add(AuditStart{});
  for (const auto from : {0, 10, 20}) train(journal, static_cast<std::uint64_t>(from));
  journal.add(AuditStart{.state = State::others, .step = 15});  // the others have gone back to step 10
  EXPECT_THAT(journal.intervals(), IsEmpty()) << "its own steps from 10 to 30 are not the run's";
  journal.add(AuditSnapshot{20});
  journal.add(checkpoint(20));
  train(journal, 20);
  ASSERT_THAT(journal.intervals(), SizeIs(1));
  EXPECT_EQ(journal.intervals()[0].begin.step, 20U);
}

TEST(AuditJournal, TheStateOfOthersBeginsAnew) {
  Journal journal;
  journal.add(AuditStart{});
  train(journal, 0);
  journal.add(AuditStart{.state = State::others, .step = 17});
  for (std::uint64_t step = 17; step < 20; ++step)
    journal.add(AuditTrained{.step = step, .samples = {{0, step, step + 1}}});
  journal.add(AuditSnapshot{20});
  journal.add(checkpoint(20));
  EXPECT_THAT(journal.intervals(), IsEmpty());
  train(journal, 20);
  EXPECT_THAT(journal.intervals(), SizeIs(1));
}

TEST(AuditJournal, JoinedIntervalsKeepTheirMachineOnlyIfItIsOne) {
  Journal journal;
  journal.add(AuditStart{.state = State::initial, .machine = {{"build", "a"}}});
  for (const auto from : {0, 10, 20}) train(journal, static_cast<std::uint64_t>(from));
  auto intervals = journal.intervals();
  EXPECT_EQ(joined(intervals).machine.at("build"), "a");
  EXPECT_EQ(joined(intervals).rounds(), 2U);
  EXPECT_EQ(joined(intervals).end.step, 30U);
  intervals[1].machine["build"] = "b";
  EXPECT_THAT(joined(intervals).machine, IsEmpty());
}

TEST(AuditDraw, HasTheShareOfAllRounds) {
  const std::vector<std::uint64_t> rounds(300, 12);
  EXPECT_THAT(draw_intervals(rounds, AuditRequest().sample, 7), SizeIs(3)) << "the default is 1 %";
  EXPECT_THAT(draw_intervals(rounds, 0.5, 7), SizeIs(150));
  EXPECT_THAT(draw_intervals(rounds, 1, 7), SizeIs(300));
  EXPECT_THAT(draw_intervals({5, 5}, 0.01, 7), SizeIs(1)) << "at least one";
  EXPECT_THAT(draw_intervals({}, 1, 7), IsEmpty());
  EXPECT_EQ(draw_intervals(rounds, 0.01, 7), draw_intervals(rounds, 0.01, 7));
  EXPECT_NE(draw_intervals(rounds, 0.01, 7), draw_intervals(rounds, 0.01, 8));
}

TEST(AuditReceipts, KnowTheLedgersOfOthers) {
  Receipts receipts;
  Digest chain, abandoned;
  chain.bytes.fill(1);
  const SampleSet samples({{0, 10, 20}});
  const auto applied = [](const Digest& digest, std::vector<SampleRange> ranges) {
    return AuditApplied{
        .fragment = 1, .round = 2, .chain = short_digest(digest), .samples = std::move(ranges)};
  };
  const auto missing = [&] { return receipts.gap_in_ledgers("eu", 1, 2, chain, samples).missing; };
  EXPECT_EQ(missing(), 0U) << "no ledger is known";
  receipts.add("eu", applied(chain, {{1, 0, 1}}));
  receipts.add("eu.1", applied(chain, {{1, 0, 1}}));
  EXPECT_EQ(missing(), 0U) << "its own is no evidence";
  receipts.add("us", applied(abandoned, {{1, 0, 10}}));
  EXPECT_EQ(missing(), 0U) << "of a history that the run has abandoned";
  receipts.add("us", applied(chain, {}));
  EXPECT_EQ(missing(), 0U) << "us does not know what is in the round";
  receipts.add("us", applied(chain, {{0, 10, 18}, {1, 0, 10}}));
  EXPECT_EQ(missing(), 2U);
  EXPECT_EQ(receipts.gap_in_ledgers("eu", 1, 3, chain, samples).missing, 0U);
  receipts.add("cn", applied(chain, {{0, 10, 19}}));
  receipts.add("cn", applied(chain, {{0, 10, 19}}));
  EXPECT_EQ(missing(), 1U);
  EXPECT_THAT(receipts.gap_in_ledgers("eu", 1, 2, chain, samples).members, testing::ElementsAre("us", "cn"));
  receipts.add("jp", applied(chain, {{0, 0, 20}}));
  const auto gap = receipts.gap_in_ledgers("eu", 1, 2, chain, samples);
  EXPECT_TRUE(gap.is_doubtful() && !gap.is_sure()) << "one of the records is false";
  EXPECT_EQ(gap.complete, "jp");
}

TEST(AuditJournal, NeedsAStart) {
  Journal journal;
  for (const auto from : {0, 10, 20}) train(journal, static_cast<std::uint64_t>(from));
  EXPECT_THAT(journal.intervals(), IsEmpty()) << "their start is of another version";
  journal.add(AuditStart{.state = State::checkpoint, .step = 30});
  for (const auto from : {30, 40, 50}) train(journal, static_cast<std::uint64_t>(from));
  EXPECT_THAT(journal.intervals(), SizeIs(2));
}

TEST(AuditReceipts, AreFoundByTheResultThatWasMadeOfThem) {
  Digest first, second;
  second.bytes.fill(1);
  Receipts receipts;
  receipts.add(
      "eu",
      AuditReceipts{.round = 3, .chunks = {1, 2}, .results = {short_digest(first), short_digest(first)}});
  receipts.add("us", AuditReceipts{.round = 3, .chunks = {1}, .results = {short_digest(second)}});
  ASSERT_THAT(receipts.find(0, 1, 3, second), SizeIs(1)) << "the round was repeated under another owner";
  EXPECT_EQ(*receipts.find(0, 1, 3, second)[0].owner, "us");
  EXPECT_EQ(*receipts.find(0, 2, 3, first)[0].owner, "eu");
  EXPECT_EQ(receipts.find(0, 2, 3, first)[0].chunk, 1U);
  EXPECT_THAT(receipts.find(0, 1, 4, second), IsEmpty());
  EXPECT_THAT(receipts.find(0, 0, 3, second), IsEmpty());
  EXPECT_THAT(receipts.find(1, 1, 3, second), IsEmpty());
}

TEST(AuditReceipts, OfManyMembersComeInSeveralLines) {
  const AuditReceived eu{.member = "eu", .weight = 5, .bytes = {10, 11}};
  const AuditReceived us{.member = "us", .kept = false, .bytes = {20, 21}};
  Receipts receipts;
  for (const auto& received : {eu, us})
    receipts.add("hub",
                 AuditReceipts{.round = 3, .chunks = {1, 4}, .results = {0, 0}, .contributions = {received}});
  const auto found = receipts.find(0, 4, 3, Digest());
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(*found[0].from("eu"), eu);
  EXPECT_EQ(found[0].from("us"), nullptr);
  EXPECT_EQ(*found[1].from("us"), us);
}

TEST(AuditFiles, ReceiptsListEachMemberAndChunkOnce) {
  AuditReceipts line{.fragment = 1, .round = 2, .chunks = {3, 4}, .results = {0, 0}};
  line.contributions = {{.member = "eu", .bytes = {0, 0}}, {.member = "us", .bytes = {0, 0}}};
  EXPECT_TRUE(audit_line(audit_json(line).dump()));
  auto twice = line;
  twice.contributions[1].member = "eu";
  EXPECT_FALSE(audit_line(audit_json(twice).dump()));
  twice = line;
  twice.chunks[1] = 3;
  EXPECT_FALSE(audit_line(audit_json(twice).dump()));
}

TEST(AuditFiles, LinesOfAnotherFormAreCounted) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("audit.jsonl", audit_json(AuditSnapshot{7}).dump() + "\n\nnonsense\n{\"snap");
  std::size_t lines = 0;
  EXPECT_EQ(read_audit_file(file, [&](const AuditLine&) { ++lines; }), 2U);
  EXPECT_EQ(lines, 1U);
  EXPECT_THROW((void)read_audit_file(folder / "none", [](const AuditLine&) {}), Error);
}

}  // namespace
}  // namespace isthmus::app
