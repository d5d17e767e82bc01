// The queue of a member's log and metric lines on their way to the coordinator.

#include "isthmus/outer_sync/net/member/io/record_queue.h"

#include <gmock/gmock.h>

#include <thread>

namespace isthmus::outer_sync {
namespace {

using protocol::RecordKind;
using protocol::Records;
using ::testing::ElementsAre;

std::vector<std::string> lines_of(const Records& records) {
  std::vector<std::string> out;
  for (const auto& record : records.records) out.push_back(record.line);
  return out;
}

TEST(RecordQueue, LinesStayUntilTheyAreTaken) {
  RecordQueue queue;
  for (const auto* line : {"a", "b", "c"}) queue.add(RecordKind::log, line);
  EXPECT_THAT(lines_of(queue.next(1000)), ElementsAre("a", "b", "c"));
  EXPECT_THAT(lines_of(queue.next(1)), ElementsAre("a")) << "at least one";
  queue.taken(2);
  EXPECT_EQ(queue.next(1000).first, 2U);
  EXPECT_THAT(lines_of(queue.next(1000)), ElementsAre("c"));
  EXPECT_TRUE(queue.next(1000, 3).records.empty());
  queue.taken(100);
  EXPECT_EQ(queue.bytes(), 0U);
  queue.add(RecordKind::log, "d");
  EXPECT_EQ(queue.next(1000).first, 3U) << "lines keep their numbers, regardless of a wrong acknowledgement";
}

TEST(RecordQueue, TheOldestGiveWayWhereNobodyTakesThem) {
  RecordQueue queue(1000);
  for (int i = 0; i < 100; ++i) queue.add(RecordKind::metrics, std::string(92, '1'));
  EXPECT_LE(queue.bytes(), 1000U);
  const auto kept = queue.next(10'000);
  EXPECT_EQ(kept.first, 90U);
  EXPECT_EQ(kept.records.size(), 10U);
}

TEST(RecordQueue, ALineIsOneLineAndNoLongerThanAllowed) {
  RecordQueue queue;
  queue.add(RecordKind::log, "two\nlines\r");
  queue.add(RecordKind::log, std::string(2 * protocol::longest_record, 'x'));
  queue.add(RecordKind::metrics, std::string(2 * protocol::longest_record, '1'));
  const auto all = queue.next(SIZE_MAX).records;
  ASSERT_EQ(all.size(), 2U) << "half a JSON object must be left out";
  EXPECT_EQ(all[0].line, "two lines ");
  EXPECT_EQ(all[1].line.size(), protocol::longest_record);
}

TEST(RecordQueue, ThreadsMayWriteWhileOneSends) {
  RecordQueue queue;
  constexpr std::uint64_t each = 1000;
  std::vector<std::jthread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&queue] {
      for (std::uint64_t n = 0; n < each; ++n) queue.add(RecordKind::log, "line");
    });
  }
  std::uint64_t sent = 0;
  while (sent < 3 * each) {
    const auto next = queue.next(100);
    ASSERT_EQ(next.first, sent);
    sent += next.records.size();
    queue.taken(sent);
  }
  EXPECT_EQ(queue.bytes(), 0U);
}

}  // namespace
}  // namespace isthmus::outer_sync
