// How often and when an ended process is restarted.

#include "launch/processes/restarts.h"

#include <gtest/gtest.h>

namespace isthmus::app {
namespace {

using namespace std::chrono_literals;
using Answer = Restarts::Answer;
using Cause = Restarts::Cause;

TEST(Restarts, EachProcessHasItsOwn) {
  Restarts restarts(2);
  Restarts::Clock::time_point now{};
  EXPECT_EQ(restarts.ask("eu", Cause::died, now), Answer::now);
  EXPECT_EQ(restarts.ask("us", Cause::died, now), Answer::now);
  EXPECT_EQ(restarts.ask("eu", Cause::died, now + 1s), Answer::later)
      << "the delay of the second restart begins at its first request";
  EXPECT_EQ(restarts.ask("eu", Cause::died, now + 1500ms), Answer::later)
      << "asking again uses no further restart";
  EXPECT_EQ(restarts.ask("eu", Cause::died, now + 2s), Answer::now);
  EXPECT_EQ(restarts.ask("eu", Cause::died, now + 1h), Answer::no);
  EXPECT_EQ(restarts.ask("us", Cause::died, now + 1h), Answer::now);
  EXPECT_EQ(restarts.of("eu"), 2);
  EXPECT_EQ(restarts.of("us"), 2);
  EXPECT_EQ(restarts.of("ap"), 0);
}

TEST(Restarts, OneThatHasSaidWhyIsTriedAgainAfterAWhile) {
  Restarts restarts(1);
  const Restarts::Clock::time_point now{};
  EXPECT_EQ(restarts.ask("eu", Cause::failed, now), Answer::later);
  EXPECT_EQ(restarts.ask("eu", Cause::failed, now + Restarts::after_failure - 1ms), Answer::later);
  EXPECT_EQ(restarts.ask("eu", Cause::failed, now + Restarts::after_failure), Answer::now);
  EXPECT_EQ(restarts.ask("eu", Cause::failed, now + 1h), Answer::no);
}

TEST(Restarts, LostConnectionsDoNotCount) {
  Restarts restarts(0);
  Restarts::Clock::time_point now{};
  EXPECT_EQ(restarts.ask("eu", Cause::died, now), Answer::no);
  for (int i = 0; i < 1000; ++i) {
    while (restarts.ask("eu", Cause::lost, now) == Answer::later) now += 1s;
  }
  EXPECT_EQ(restarts.of("eu"), 1000);
  EXPECT_GT(now.time_since_epoch(), 990 * 60s);
}

TEST(Restarts, OneThatRanForLongIsStartedAgainAtOnce) {
  Restarts restarts(10);
  Restarts::Clock::time_point now{};
  for (int i = 0; i < 5; ++i) {
    while (restarts.ask("eu", Cause::died, now) == Answer::later) now += 1s;
  }
  now += Restarts::settled;
  EXPECT_EQ(restarts.ask("eu", Cause::died, now), Answer::now);
  EXPECT_EQ(restarts.ask("eu", Cause::died, now), Answer::later);
}

TEST(Restarts, TheExitStatusSaysWhoComesBack) {
  EXPECT_EQ(Restarts::cause_of(4), Cause::lost);
  for (const int died : {127, 128 + 9}) EXPECT_EQ(Restarts::cause_of(died), Cause::died) << died;
  for (const int failed : {1, 3}) EXPECT_EQ(Restarts::cause_of(failed), Cause::failed) << failed;
  for (const int stays : {0, 2, 5, 130, 143}) EXPECT_EQ(Restarts::cause_of(stays), std::nullopt) << stays;
  for (const int comes : {1, 2, 3, 4, 127, 137, 139})
    EXPECT_TRUE(Restarts::coordinator_returns(comes)) << comes;
  for (const int stays : {0, 5, 130}) EXPECT_FALSE(Restarts::coordinator_returns(stays)) << stays;
}

TEST(Restarts, PausesDoubleToAMinute) {
  EXPECT_EQ(Restarts::pause(0), 0s);
  EXPECT_EQ(Restarts::pause(1), 1s);
  EXPECT_EQ(Restarts::pause(2), 2s);
  EXPECT_EQ(Restarts::pause(6), 32s);
  EXPECT_EQ(Restarts::pause(7), 60s);
  EXPECT_EQ(Restarts::pause(1'000'000), 60s);
}

}  // namespace
}  // namespace isthmus::app
