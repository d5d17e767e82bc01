// Metrics and log lines of members at the coordinator.

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;

/// Log lines with their numbers as text.
Records lines(std::uint64_t first, std::uint64_t end) {
  Records out{first, {}};
  for (auto n = first; n < end; ++n) out.records.push_back({RecordKind::log, std::to_string(n)});
  return out;
}
std::vector<std::string> words_of(const Gathered& gathered) {
  std::vector<std::string> out;
  for (const auto& record : gathered.records) out.push_back(record.line);
  return out;
}

TEST(Gathering, EveryLineOnceHoweverOftenItIsSaid) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, lines(0, 2));
  EXPECT_EQ(harness.last<RecordsTaken>(2)->next, 2U);
  harness.receive(2, lines(0, 2));  // as if the answer was lost
  harness.receive(2, lines(1, 4));
  EXPECT_EQ(harness.last<RecordsTaken>(2)->next, 4U);
  ASSERT_EQ(harness.gathered.size(), 2U);
  EXPECT_EQ(harness.gathered[0].member, "us-1");
  EXPECT_THAT(words_of(harness.gathered[0]), ElementsAre("0", "1"));
  EXPECT_THAT(words_of(harness.gathered[1]), ElementsAre("2", "3"));
  EXPECT_FALSE(harness.last<RecordsTaken>(1)) << "the lines were another member's";
}

TEST(Gathering, WhatTheMemberCouldNotKeepIsCounted) {
  CoordinatorHarness harness(1);
  harness.run_all({"us-1"});
  harness.receive(1, lines(0, 1));
  harness.receive(1, lines(11, 12));
  EXPECT_EQ(harness.gathered.at(1).left_out, 10U);
  EXPECT_EQ(harness.last<RecordsTaken>(1)->next, 12U);
}

TEST(Gathering, ItGoesOnOverANewConnectionAndBeginsAnewWithANewProcess) {
  CoordinatorHarness harness(2);
  harness.run_all({"eu-1", "us-1"});
  harness.receive(2, lines(0, 3));
  harness.close(2);
  auto back = CoordinatorHarness::hello("us-1");
  back.activated = back.sealed = 1;
  back.fresh = false;
  back.token = digest_of(99);
  harness.receive(3, back);
  harness.receive(3, lines(1, 5));
  EXPECT_THAT(words_of(harness.gathered.at(1)), ElementsAre("3", "4"));
  EXPECT_EQ(harness.gathered.at(1).left_out, 0U);

  auto again = CoordinatorHarness::hello("us-1");
  again.member.incarnation = 2;
  harness.receive(4, again);
  ASSERT_EQ(harness.refusal(4), "");
  harness.receive(4, lines(0, 1));
  EXPECT_EQ(harness.gathered.at(2).incarnation, 2U);
  EXPECT_THAT(words_of(harness.gathered.at(2)), ElementsAre("0"));
}

TEST(Gathering, RecordsThatCannotBeEndTheConnection) {
  const Records unsound[] = {
      {0, {}},
      {0, {{static_cast<RecordKind>(3), "of no kind"}}},
      {0, {{RecordKind::log, std::string(longest_record + 1, 'x')}}},
      {~std::uint64_t{0}, {{RecordKind::log, "beyond all numbers"}}},
  };
  for (const auto& records : unsound) {
    CoordinatorHarness harness(2);
    harness.run_all({"eu-1", "us-1"});
    harness.receive(2, records);
    EXPECT_TRUE(harness.closed.contains(2));
    EXPECT_TRUE(harness.gathered.empty());
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
