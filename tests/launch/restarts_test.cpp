// How often, and when, a worker that has died is started again.

#include "launch/restarts.h"

#include <gtest/gtest.h>

namespace isthmus::app {
namespace {

using namespace std::chrono_literals;
using Answer = Restarts::Answer;

TEST(Restarts, AtMostSoManyTogether) {
  Restarts restarts(3);
  Restarts::Clock::time_point now{};
  EXPECT_EQ(restarts.ask("eu", now), Answer::now);
  EXPECT_EQ(restarts.ask("us", now), Answer::now);
  EXPECT_EQ(restarts.ask("eu", now + 1s), Answer::later) << "the second one waits from when it is asked for";
  EXPECT_EQ(restarts.ask("eu", now + 1500ms), Answer::later) << "and asking again costs none";
  EXPECT_TRUE(restarts.any_waits());
  EXPECT_EQ(restarts.ask("eu", now + 2s), Answer::now);
  EXPECT_FALSE(restarts.any_waits());
  EXPECT_EQ(restarts.ask("us", now + 1h), Answer::no);
  EXPECT_EQ(restarts.of("eu"), 2);
  EXPECT_EQ(restarts.of("us"), 1);
  EXPECT_EQ(restarts.of("ap"), 0);
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
