// A peer's reports of the bytes that arrived, and what the sender learns from them.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "isthmus/base/error.h"
#include "net/rate/arrivals.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using testing::Optional;
using Time = Arrivals::Time;

Arrived said(Time at, std::vector<Arrived::Lane> lanes) {
  Arrived arrived;
  arrived.at = static_cast<std::uint64_t>(std::chrono::nanoseconds(at).count());
  arrived.lanes = std::move(lanes);
  return arrived;
}

TEST(Departures, AreKnownBetweenTheMomentsThatWereSaid) {
  SendTimes send_times;
  send_times.left(0, true, 0ms);
  send_times.left(1000, false, 10ms);
  send_times.left(3000, false, 20ms);
  EXPECT_THAT(send_times.when(500), Optional(Time(5ms)));
  EXPECT_THAT(send_times.when(1000), Optional(Time(10ms)));
  EXPECT_THAT(send_times.when(2000), Optional(Time(15ms)));
  EXPECT_EQ(send_times.when(3001), std::nullopt) << "no departure of these bytes was recorded";
  EXPECT_EQ(send_times.when(900), std::nullopt) << "forgotten, since later bytes were asked for";
}

TEST(Departures, NobodyKnowsWhenTheLastOnesBeforeAPauseLeft) {
  SendTimes send_times;
  send_times.left(0, true, 0ms);
  send_times.left(1000, false, 10ms);
  send_times.left(1500, true, 60ms);  // at some time between 11 ms and now
  send_times.left(1500, true, 110ms);
  send_times.left(1500, true, 160ms);
  send_times.left(2500, false, 170ms);
  EXPECT_THAT(send_times.when(1000), Optional(Time(10ms)));
  EXPECT_EQ(send_times.when(1400), std::nullopt);
  EXPECT_EQ(send_times.when(1500), std::nullopt);
  EXPECT_THAT(send_times.when(2000), Optional(Time(165ms))) << "the pause lasted until 160 ms";
}

/// Like a lane on which each piece is written as soon as the previous one has left.
TEST(Departures, MomentsWithNothingToSendAreNoPauses) {
  SendTimes send_times;
  for (int i = 0; i <= 5; ++i) send_times.left(static_cast<std::uint64_t>(1000 * i), true, 10ms * i);
  EXPECT_THAT(send_times.when(1500), Optional(Time(15ms)));
  EXPECT_THAT(send_times.when(4000), Optional(Time(40ms)));
  EXPECT_EQ(send_times.when(4500), std::nullopt) << "a pause may begin after these bytes";
}

/// Like a lane that carries a piece now and then, with acknowledgements in between.
TEST(Departures, APauseNeedNotHaveBeenSeen) {
  SendTimes send_times;
  send_times.left(0, true, 0ms);
  send_times.left(1000, true, 40ms);  // perhaps at 1 ms already
  send_times.left(2066, true, 80ms);
  send_times.left(3066, false, 90ms);
  EXPECT_EQ(send_times.when(1000), std::nullopt);
  EXPECT_EQ(send_times.when(2066), std::nullopt);
  EXPECT_THAT(send_times.when(2566), Optional(Time(85ms)));
}

TEST(Departures, TakeNoMoreMemoryHoweverOftenTheyAreSaid) {
  SendTimes send_times;
  for (int i = 0; i < 1'000'000; ++i) send_times.left(static_cast<std::uint64_t>(i), false, i * 1ms);
  EXPECT_EQ(send_times.when(1000), std::nullopt) << "send times this long ago need not be kept";
  EXPECT_THAT(send_times.when(999'500), Optional(Time(999'500ms)));
}

/// Samples every 50 ms, with a remote clock that starts at any time.
class Way {
 public:
  Time apart = 17h;
  double drift = 0;  ///< of the remote clock
  QueueingDelay there{};

  Time sample(Time queue_there, Time queue_back, Time late = 0ms) {
    now_ += 50ms;
    const auto drifted = std::chrono::duration_cast<Time>(now_ * drift);
    there.sample(apart + drifted + 50ms + queue_there + late, queue_there + queue_back, now_);
    return *there.queue();
  }

 private:
  Time now_ = 1h;
};

TEST(QueueThere, IsToldFromTheQueueOfTheWayBack) {
  Way way;
  way.sample(0ms, 0ms);
  EXPECT_EQ(way.sample(30ms, 0ms), 30ms);
  EXPECT_EQ(way.sample(0ms, 40ms), 0ms);
  EXPECT_EQ(way.sample(10ms, 40ms), 10ms);
}

TEST(QueueThere, IsFoundThoughBothQueuesWereThereBefore) {
  Way way;
  EXPECT_EQ(way.sample(20ms, 40ms), 60ms) << "at most the sum of both queues";
  for (int i = 0; i < 100; ++i) static_cast<void>(way.sample(25ms, 0ms));
  EXPECT_NEAR(static_cast<double>(way.sample(20ms, 40ms) / 1us), 20'000, 500)
      << "a few seconds without a queue on the way back must be enough";
}

/// Samples queues of all lengths in both directions. Returns the largest error in milliseconds, not counting
/// the first 400 samples and late ones.
double wrong_by(Way& way, int samples, int late_every) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> milliseconds(0, 24);
  double most = 0;
  for (int i = 1; i <= samples; ++i) {
    const Time there = milliseconds(random) * 1ms, back = milliseconds(random) * 1ms;
    const bool late = late_every > 0 && i % late_every == 0;
    const auto found = way.sample(there, back, late ? 120ms : 0ms);
    EXPECT_LE(found, there + back) << "longer than the round trip's queueing";
    const auto wrong = std::chrono::duration<double, std::milli>(found - there).count();
    if (i > 400 && !late) most = std::max(most, std::abs(wrong));
  }
  return most;
}

TEST(QueueThere, ClocksMayDriftApart) {
  for (const double drift : {-5e-5, 5e-5}) {
    Way way;
    way.drift = drift;
    EXPECT_LT(wrong_by(way, 20 * 3600, 0), 3) << drift;
  }
}

/// Data that TCP sent twice arrives a round trip later and does not show a queue.
TEST(QueueThere, WhatWasSentTwiceChangesLittle) {
  Way way;
  EXPECT_LT(wrong_by(way, 20 * 600, 10), 5);
}

class OfTwoLanes : public testing::Test {
 protected:
  OfTwoLanes() {
    arrivals.begun(0, 10);
    arrivals.begun(1, 12);
    for (const std::size_t lane : {0, 1}) {
      arrivals.left(lane, 0, true, 1000ms);
      arrivals.left(lane, 10'000, false, 1010ms);
      arrivals.left(lane, 20'000, false, 1020ms);
    }
  }
  Arrivals arrivals{2};
};

TEST_F(OfTwoLanes, TheyAddUp) {
  EXPECT_EQ(arrivals.queue(), std::nullopt);
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), 0ms, 1110ms);
  EXPECT_EQ(arrivals.bytes(), 10'000U);
  EXPECT_EQ(arrivals.at(), 5060ms);
  EXPECT_THAT(arrivals.queue(), Optional(Time(0ms)));
  arrivals.heard(said(5095ms, {{10, 15'000}}), 30ms, 1150ms);
  EXPECT_EQ(arrivals.bytes(), 20'000U);
  EXPECT_THAT(arrivals.queue(), Optional(Time(25ms)));
}

TEST_F(OfTwoLanes, WithoutAnythingOnItsWayThereIsNoQueue) {
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), 0ms, 1110ms);
  arrivals.heard(said(5095ms, {{10, 15'000}}), 30ms, 1150ms);
  arrivals.heard(said(5200ms, {{10, 20'000}, {12, 20'000}}), 30ms, 1250ms);
  EXPECT_EQ(arrivals.bytes(), 40'000U);
  EXPECT_THAT(arrivals.queue(), Optional(Time(0ms)));
}

TEST_F(OfTwoLanes, WhatCannotBeIsPassedOver) {
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), 0ms, 1110ms);
  arrivals.heard(said(5050ms, {{10, 9000}}), 0ms, 1120ms);
  EXPECT_EQ(arrivals.bytes(), 10'000U) << "a later report has overtaken this one";
  arrivals.heard(said(5070ms, {{10, 20'001}, {12, 4999}}), 0ms, 1120ms);
  EXPECT_EQ(arrivals.bytes(), 10'000U) << "more than was sent, less than before";
  arrivals.heard(said(5080ms, {{11, 9000}, {0, 9000}}), 0ms, 1130ms);
  EXPECT_EQ(arrivals.bytes(), 10'000U) << "no lane has these connections";
}

TEST_F(OfTwoLanes, WhatSaysNothingNewIsNoNews) {
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), 0ms, 1110ms);
  arrivals.heard(said(5070ms, {{99, 9000}}), 0ms, 1120ms);
  EXPECT_EQ(arrivals.at(), 5060ms) << "the time of the last useful report must stay";
}

TEST_F(OfTwoLanes, WithoutARoundTripThereIsNoQueueToTell) {
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), std::nullopt, 1110ms);
  EXPECT_EQ(arrivals.bytes(), 10'000U);
  EXPECT_EQ(arrivals.queue(), std::nullopt);
}

TEST_F(OfTwoLanes, WhenAllWereLostTheWayMayBeAnother) {
  arrivals.heard(said(5060ms, {{10, 5000}, {12, 5000}}), 0ms, 1110ms);
  arrivals.begun(0, 0);
  EXPECT_THAT(arrivals.queue(), Optional(Time(0ms)));
  arrivals.begun(1, 0);
  EXPECT_EQ(arrivals.queue(), std::nullopt);
}

TEST_F(OfTwoLanes, AReportOfTheConnectionBeforeIsNotOfThisOne) {
  arrivals.heard(said(5060ms, {{10, 5000}}), 0ms, 1110ms);
  arrivals.begun(0, 14);
  arrivals.left(0, 0, true, 1100ms);
  arrivals.left(0, 30'000, false, 1130ms);
  arrivals.heard(said(5070ms, {{10, 15'000}}), 0ms, 1140ms);
  EXPECT_EQ(arrivals.bytes(), 5000U);
  arrivals.heard(said(5180ms, {{14, 1000}}), 0ms, 1190ms);
  EXPECT_EQ(arrivals.bytes(), 6000U);
  arrivals.begun(0, 0);
  arrivals.heard(said(5190ms, {{14, 2000}, {0, 7}}), 0ms, 1200ms);
  EXPECT_EQ(arrivals.bytes(), 6000U) << "the lane is down";
}

TEST_F(OfTwoLanes, WhatCannotBeReckonedWithIsRefused) {
  EXPECT_THROW(arrivals.heard(said(1s, {{10, 1}, {12, 1}, {14, 1}}), 0ms, 1s), Error);
  Arrived late;
  late.at = UINT64_MAX;
  EXPECT_THROW(arrivals.heard(late, 0ms, 1s), Error);
  late.at = INT64_MAX / 2;
  EXPECT_THROW(arrivals.heard(late, 0ms, 1s), Error);
}

TEST(ArrivalReports, SaysWhatHasComeSince) {
  ArrivalReports received;
  EXPECT_FALSE(received.report({{10, 4000}, {12, 95}}, 1s)) << "hardly more than the report itself";
  const auto first = received.report({{10, 4000}, {12, 9000}}, 2s);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->at, 2'000'000'000U);
  ASSERT_EQ(first->lanes.size(), 2U);
  const auto second = received.report({{10, 4000}, {12, 19'000}}, 3s);
  ASSERT_TRUE(second);
  ASSERT_EQ(second->lanes.size(), 1U);
  EXPECT_EQ(second->lanes[0].connection, 12U);
  EXPECT_EQ(second->lanes[0].bytes, 19'000U);
  const auto other = received.report({{14, 5000}, {12, 19'000}}, 4s);
  ASSERT_TRUE(other) << "a new connection must be reported";
  EXPECT_EQ(other->lanes[0].connection, 14U);
}

/// Otherwise two ends would report each other's reports for ever.
TEST(ArrivalReports, ReportsAloneAreNotReported) {
  ArrivalReports here, there;
  std::uint64_t to_there = 1'000'000, to_here = 0;
  int reports = 0;
  for (int tick = 1; tick < 10'000; ++tick) {
    if (there.report({{10, to_there}}, tick * 50ms)) to_here += 200, ++reports;
    if (here.report({{10, to_here}}, tick * 50ms)) to_there += 200, ++reports;
  }
  EXPECT_EQ(reports, 1);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
