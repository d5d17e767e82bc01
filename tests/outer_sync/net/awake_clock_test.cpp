#include "net/link/awake_clock.h"

#include <gtest/gtest.h>

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;

TEST(AwakeClock, APauseOfTheProcessCountsAsOneStep) {
  const auto begin = AwakeClock::Clock::now() + 1h;
  AwakeClock clock(100ms);
  const auto start = clock.at(begin);
  EXPECT_EQ(clock.at(begin + 60ms) - start, 60ms);
  EXPECT_EQ(clock.at(begin + 60ms) - start, 60ms);
  EXPECT_EQ(clock.at(begin + 10s) - start, 160ms) << "the machine was suspended";
  EXPECT_EQ(clock.at(begin + 10s + 30ms) - start, 190ms);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
