// The screen of `isthmus top` for an answer, and the newest rounds that the coordinator keeps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/live/top_screen.h"
#include "coordinator/records/round_timeline.h"
#include "coordinator/run_status.h"
#include "isthmus/base/error.h"

namespace isthmus::app {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::json;

/// Two fragments, each sent every 10 steps: at 10, 20, ... and at 5, 15, ... Results are applied 2 steps
/// later.
const outer_sync::Schedule schedule(2, 10, 2, 0);

class Timeline : public ::testing::Test {
 protected:
  /// Reports the members' steps at this time.
  void at(double seconds, std::uint64_t a, std::uint64_t b) {
    timeline.look(seconds, schedule, 2, {{"a", a, 1}, {"b", b, 1}});
  }
  [[nodiscard]] Json round(std::uint64_t fragment, std::uint64_t number, double now = 100) const {
    for (const auto& entry : timeline.json(now, 100)) {
      if (entry["fragment"] == fragment && entry["round"] == number) return entry;
    }
    return {};
  }
  RoundTimeline timeline;
};

TEST_F(Timeline, ARoundIsSentWhenTheLastHasMadeItsStep) {
  at(0, 0, 0);
  at(20, 20, 10);
  const auto first = round(0, 1);
  EXPECT_EQ(first["sent_step"], 10);
  EXPECT_EQ(first["apply_step"], 12);
  EXPECT_DOUBLE_EQ(first["sent_seconds_ago"], 100 - 20) << "b made ten steps in twenty seconds";
  EXPECT_TRUE(first["took_seconds"].is_null());
  timeline.committed(23, 0, 1);
  EXPECT_DOUBLE_EQ(round(0, 1)["took_seconds"], 3);
  EXPECT_DOUBLE_EQ(round(0, 1)["late_seconds"], 11) << "a would have applied it after 12 s";
}

TEST_F(Timeline, TheTimetableHasTheNextRoundOfEachFragmentUpToTheLastStep) {
  EXPECT_THAT(timeline.timetable(schedule, 2, 100, 10), SizeIs(0)) << "no member is known";
  timeline.look(0, schedule, 2, {{"a", 13, 2}, {"b", 11, 2}});
  const auto next = timeline.timetable(schedule, 2, 100, 10);
  ASSERT_THAT(next, SizeIs(2));
  EXPECT_EQ(next[0], (nlohmann::ordered_json{{"fragment", 1},
                                             {"round", 2},
                                             {"sent_step", 15},
                                             {"apply_step", 17},
                                             {"sent_in_seconds", 2.0},
                                             {"due_in_seconds", 3.0}}))
      << next.dump(2);
  EXPECT_EQ(next[1]["fragment"], 0);
  EXPECT_EQ(next[1]["sent_step"], 20);
  EXPECT_THAT(timeline.timetable(schedule, 2, 100, 1), SizeIs(1));
  EXPECT_THAT(timeline.timetable(schedule, 2, 19, 10), SizeIs(1)) << "the run ends before the other one";
  timeline.look(1, schedule, 2, {{"a", 13, 0}});
  EXPECT_TRUE(timeline.timetable(schedule, 2, 100, 1)[0]["due_in_seconds"].is_null());
}

TEST(Timelines, EndWhateverStepIsReported) {
  constexpr auto last = ~std::uint64_t{0};
  for (const std::uint64_t every : {1, 30, 100}) {
    const outer_sync::Schedule of_run(3, every, every / 6, 0);
    RoundTimeline timeline;
    timeline.look(0, of_run, 3, {{"a", 1, 1}});
    timeline.look(1, of_run, 3, {{"a", last, 1}});
    EXPECT_LE(timeline.json(2, 100).size(), 3 * RoundTimeline::kept);
  }
}

TEST_F(Timeline, WhatWaitsHasNotMadeItsStepYet) {
  at(0, 10, 10);
  at(1, 11, 11);
  timeline.committed(6, 0, 1);  // it was due a second before, so all have waited for four
  at(6, 12, 12);
  EXPECT_TRUE(round(0, 1).is_null()) << "it was sent before the first look";
  at(14, 20, 20);
  at(15, 21, 21);
  timeline.committed(20, 0, 2);
  at(20, 22, 22);
  EXPECT_DOUBLE_EQ(round(0, 2)["late_seconds"], 4) << "its step began at 15 s and takes one second";
}

TEST_F(Timeline, EarlyIsLessThanZero) {
  at(0, 0, 0);
  at(11, 11, 11);
  timeline.committed(11, 0, 1);
  at(13, 13, 13);
  EXPECT_DOUBLE_EQ(round(0, 1)["late_seconds"], -1);
}

TEST_F(Timeline, TheNewsOfItsEndMayComeBeforeThatOfItsBeginning) {
  at(0, 0, 0);
  timeline.committed(11, 0, 1);
  at(12, 12, 8);
  at(14, 12, 11);
  EXPECT_DOUBLE_EQ(round(0, 1)["took_seconds"], 0) << "within a heartbeat";
  EXPECT_DOUBLE_EQ(round(0, 1)["late_seconds"], -1);
}

TEST_F(Timeline, OnlyTheNewestAreKept) {
  at(0, 0, 0);
  for (int i = 1; i <= 200; ++i) at(i, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i));
  EXPECT_THAT(timeline.json(200, 100), SizeIs(2 * RoundTimeline::kept));
  EXPECT_THAT(timeline.json(200, 3), SizeIs(2)) << "one of each fragment";
  EXPECT_THAT(timeline.json(200, 1), SizeIs(1));
  at(300, 1'000'000'000, 1'000'000'000);
  EXPECT_THAT(timeline.json(300, 100), SizeIs(2 * RoundTimeline::kept))
      << "a jump of the step must not cost more";
  timeline.committed(300, 7, 1);  // of a fragment that does not exist
}

TEST_F(Timeline, OneThatBeginsAnewDoesSoHereToo) {
  at(0, 0, 0);
  at(20, 20, 20);
  at(21, 5, 20);
  at(31, 15, 21);
  EXPECT_EQ(round(1, 2)["sent_step"], 15);
}

Json answer(std::size_t fragments) {
  Json out{{"run", "my"},
           {"phase", "running"},
           {"view", 3},
           {"step", 40},
           {"steps", 100},
           {"replicas", 1},
           {"participating", 1},
           {"checkpoint", 0},
           {"evaluation", nullptr},
           {"relays", Json::array()},
           {"slow_paths", Json::array()},
           {"settings", {{"changes", Json::array()}, {"paused_after", nullptr}}}};
  out["members"] = Json::array();
  out["members"].push_back({{"name", "eu-1"},
                            {"site", "eu"},
                            {"kind", "trainer"},
                            {"state", "member"},
                            {"step", 40},
                            {"loss", 2.5},
                            {"utilization", 0.99},
                            {"tokens_per_second", 1000},
                            {"bytes_sent", 5},
                            {"wire_bytes_per_second", 0},
                            {"rounds_lag", std::vector<int>(fragments, 0)},
                            {"checkpoint", 0},
                            {"silent_seconds", 0}});
  out["rounds"] = Json::array();
  for (std::size_t p = 0; p < fragments; ++p) {
    for (int round = 1; round <= 3; ++round) {
      Json entry{{"fragment", p},       {"round", round},          {"sent_step", 10 * round},
                 {"apply_step", 12},    {"sent_seconds_ago", 9.5}, {"took_seconds", 0.25 * round},
                 {"late_seconds", -1.5}};
      if (round == 3) entry["took_seconds"] = entry["late_seconds"] = nullptr;
      out["rounds"].push_back(entry);
    }
  }
  return out;
}

TEST(Status, OfAResumedRunHasItsCheckpointBeforeTheNextOneIsWritten) {
  outer_sync::protocol::CoordinatorOptions options;
  options.last = outer_sync::protocol::LastView{.number = 5, .members = {}, .token = {}, .checkpoint = 40};
  const outer_sync::protocol::Coordinator coordinator(std::move(options), outer_sync::protocol::Time{});
  const auto status = status_of(coordinator, {}, std::nullopt);
  EXPECT_EQ(status["checkpoint"], 40U);
  EXPECT_THAT(status_table(Json::parse(status.dump())), HasSubstr("checkpoint 40"));
}

TEST(TopScreen, EachFragmentHasARowOfItsNewestRoundThatHasCommitted) {
  const auto lines = top_screen(answer(3), {}, 80, 24);
  EXPECT_THAT(lines, Contains(StartsWith("fragment    round")));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("2 "), HasSubstr("9.5s"), HasSubstr("0.50s"),
                                    HasSubstr("-1.50s  0.25"))));
  for (const auto& line : lines) EXPECT_LE(line.size(), 80U) << line;
}

TEST(TopScreen, WhatFindsNoRoomIsCounted) {
  const auto lines = top_screen(answer(100), {}, 80, 24);
  EXPECT_THAT(lines, SizeIs(24));
  EXPECT_THAT(lines.back(), HasSubstr("more; enlarge the terminal to see them"));
  EXPECT_THAT(top_screen(answer(100), {}, 40, 6), SizeIs(Le(6U)));
}

TEST(TopScreen, OuterStepsHaveALineWhereTheyAreKnown) {
  auto status = answer(3);
  EXPECT_THAT(top_screen(status, {}, 80, 24), Each(Not(StartsWith("outer steps"))));
  status["outer_steps"] = nullptr;
  EXPECT_THAT(top_screen(status, {}, 80, 24), Each(Not(StartsWith("outer steps"))));
  status["outer_steps"] = {{"gain", 2.4}, {"correlation", -0.125}};
  EXPECT_THAT(top_screen(status, {}, 80, 24), Contains("outer steps: gain 2.40, correlation -0.12"));
}

TEST(TopScreen, AMemberThatHasMadeNoStepYetIsInNoMean) {
  auto status = answer(1);
  EXPECT_THAT(top_screen(status, {}, 80, 24), Contains(HasSubstr("loss 2.5000  util 99%")));
  auto joiner = status["members"][0];
  joiner.update({{"name", "us-1"}, {"step", 0}, {"loss", 0.0}, {"utilization", 0.0}});
  status["members"].push_back(joiner);
  EXPECT_THAT(top_screen(status, {}, 80, 24), Contains(HasSubstr("loss 2.5000  util 99%")));
}

TEST(TopScreen, AnAnswerWithoutRoundsHasNone) {
  auto old = answer(2);
  old.erase("rounds");
  EXPECT_THAT(top_screen(old, {}, 80, 24), Each(Not(StartsWith("fragment"))));
  old["rounds"] = Json::array({{{"fragment", "none"}}});
  EXPECT_THROW((void)top_screen(old, {}, 80, 24), Error);
  old["rounds"] = 5;
  EXPECT_THROW((void)top_screen(old, {}, 80, 24), Error);
}

}  // namespace
}  // namespace isthmus::app
