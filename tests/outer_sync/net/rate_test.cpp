// The rate follower with a simulated link: a queue that drains at a rate, and a delay.

#include <gmock/gmock.h>

#include <deque>
#include <random>

#include "net/rate/rate_follower.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using Time = RateFollower::Time;

double seconds(Time time) { return std::chrono::duration<double>(time).count(); }

/// The link of one sender that always has more to send, in steps of 10 ms.
class Line {
 public:
  double rate = 1e7;  ///< bytes per second
  Time round_trip = 100ms;
  double queue_limit = 0.1;  ///< seconds
  Time noise = 0ms;          ///< largest random addition to a packet's round trip; TCP smooths it
  bool contested = false;    ///< another sender speeds up until a packet is dropped, then slows down

  /// Advances one step, in which `sends` bytes reach the link.
  void step(double sends) {
    now += 10ms;
    const double others = contested ? others_ * 0.01 : 0;
    queue_ += sends + others;
    ours_ = ours_ * 0.9 + 0.1 * sends / std::max(sends + others, 1.0);  // our rough share of the queue
    const double room = queue_limit * rate;
    others_ += rate / 1000;
    if (queue_ > room + rate * 0.01) {
      dropped += queue_ - room;
      queue_ = room;
      others_ *= 0.7;
    }
    const double leaves = std::min(queue_, rate * 0.01);
    queue_ -= leaves;
    on_way_.push_back({now + round_trip, contested ? leaves * ours_ : leaves});
    while (!on_way_.empty() && on_way_.front().first <= now) {
      delivered_ += on_way_.front().second;
      on_way_.pop_front();
    }
    longest_queue = std::max(longest_queue, queue_ / rate);
  }
  [[nodiscard]] RateFollower::Sample sample(bool busy) {
    const auto queue = std::chrono::duration_cast<Time>(std::chrono::duration<double>(queue_ / rate));
    for (int packet = 0; packet < 20 && noise > 0ms; ++packet)
      late_ += (Time(static_cast<Time::rep>(random_() % noise.count())) - late_) / 8;
    return {now, static_cast<std::uint64_t>(delivered_), now, busy, busy, queue + late_, round_trip};
  }
  [[nodiscard]] double delivered() const { return delivered_; }

  Time now = 1h;
  double dropped = 0, longest_queue = 0;

 private:
  double queue_ = 0, delivered_ = 0, others_ = 0, ours_ = 1;
  std::mt19937_64 random_{1};
  Time late_{};
  std::deque<std::pair<Time, double>> on_way_;
};

/// Sends for this long; without a limit, as fast as congestion control in its first round trips.
void run(RateFollower& follower, Line& line, Time lasts) {
  for (const auto end = line.now + lasts; line.now < end;) {
    for (int step = 0; step < 5; ++step) {
      const double rate = follower.rate() > 0 ? static_cast<double>(follower.rate()) : 2 * line.rate;
      line.step(rate * 0.01);
    }
    follower.sample(line.sample(true));
  }
}

TEST(RateFollower, FindsTheRateAndKeepsTheQueueShort) {
  for (const Time round_trip : {0ms, 20ms, 100ms, 300ms}) {
    for (const double rate : {1e6, 1e7, 1e8}) {
      Line line;
      line.rate = rate;
      line.round_trip = round_trip;
      RateFollower follower;
      run(follower, line, 10s);
      line.dropped = line.longest_queue = 0;
      const double before = line.delivered();
      run(follower, line, 60s);
      const auto what =
          "round trip " + std::to_string(seconds(round_trip)) + " s, rate " + std::to_string(rate);
      EXPECT_GE(line.delivered() - before, 0.98 * 60 * rate) << what;
      EXPECT_EQ(line.dropped, 0) << what;
      EXPECT_LT(line.longest_queue, 0.08) << what;
    }
  }
}

TEST(RateFollower, KnowsALowerBoundOfALineThatIsNeverFull) {
  Line line;
  RateFollower follower;
  const auto bursts = [&](int count) {
    for (int burst = 0; burst < count; ++burst) {  // 4 MB/s for 200 ms in every second
      for (int step = 0; step < 100; ++step) {
        line.step(step < 20 ? 4e4 : 0);
        if (step % 5 == 4) follower.sample(line.sample(false));
      }
    }
  };
  EXPECT_EQ(follower.at_least(), 0U);
  bursts(5);
  EXPECT_EQ(follower.delivers(), 0U);
  EXPECT_GT(follower.at_least(), 3'000'000U);
  EXPECT_LE(follower.at_least(), 4'100'000U);
  const auto usual = follower.at_least();
  for (int step = 0; step < 20; ++step) line.step(4e5);  // once: data that a loss had held up
  for (int step = 0; step < 20; ++step) {
    line.step(0);
    if (step % 15 == 14) follower.sample(line.sample(false));
  }
  EXPECT_EQ(follower.at_least(), usual);
  for (int step = 0; step < 13'000; step += 5) {
    for (int i = 0; i < 5; ++i) line.step(1e3);
    follower.sample(line.sample(false));
  }
  EXPECT_LT(follower.at_least(), 200'000U) << "two minutes later only 100 kB/s are known";
}

TEST(RateFollower, ForgetsTheRateOfALineThatIsNotUsed) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  EXPECT_GT(follower.measured(), 0.9 * line.rate);
  const auto idle = [&](Time lasts) {
    for (const auto end = line.now + lasts; line.now < end;) {
      for (int step = 0; step < 5; ++step) line.step(0);
      follower.sample(line.sample(false));
    }
  };
  idle(9min);
  EXPECT_GT(follower.measured(), 0.9 * line.rate);
  idle(2min);
  EXPECT_EQ(follower.measured(), 0U);
  EXPECT_EQ(follower.at_least(), 0U);
  EXPECT_GT(follower.delivers(), 0U) << "it is where the next transfer begins";
}

TEST(RateFollower, FollowsALineThatBecomesFasterOrSlower) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  line.rate = 5e7;
  run(follower, line, 25s);
  EXPECT_GT(follower.delivers(), 0.9 * line.rate) << "five times as fast, half a minute later";
  line.rate = 1e7;
  run(follower, line, 5s);
  EXPECT_LT(follower.delivers(), 1.1 * line.rate) << "a fifth of the rate, five seconds later";
  line.dropped = 0;
  run(follower, line, 5s);
  EXPECT_EQ(line.dropped, 0);
}

TEST(RateFollower, RoundTripsOfAllLengthsDoNotStopIt) {
  for (const Time noise : {10ms, 30ms, 60ms}) {
    Line line;
    line.round_trip = 20ms;
    line.noise = noise;
    RateFollower follower;
    run(follower, line, 10s);
    const double before = line.delivered();
    run(follower, line, 60s);
    EXPECT_GT(line.delivered() - before, 0.8 * 60 * line.rate) << noise / 1ms << " ms";
  }
}

TEST(RateFollower, HoldsItsOwnAgainstWhoFillsTheQueue) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  line.contested = true;
  run(follower, line, 20s);
  const double before = line.delivered();
  run(follower, line, 60s);
  EXPECT_GT(line.delivered() - before, 0.3 * 60 * line.rate);
  line.contested = false;
  run(follower, line, 20s);
  EXPECT_GT(follower.delivers(), 0.9 * line.rate) << "the other sender is gone";
}

TEST(RateFollower, LearnsFromBurstsWithPauses) {
  Line line;
  RateFollower follower;
  for (int burst = 0; burst < 20; ++burst) {
    run(follower, line, 300ms);
    for (int step = 0; step < 100; ++step) {
      line.step(0);
      if (step % 5 == 0) follower.sample(line.sample(false));
    }
  }
  EXPECT_GT(follower.delivers(), 0.9 * line.rate);
  EXPECT_LT(follower.rate(), 1.15 * line.rate);
}

/// For example, the site's other link is slower: data never waits in the outbox, and yet fills the link's
/// queue.
TEST(RateFollower, AQueueThatStandsShowsThatTheLineIsSlowerThoughNothingWaitsHere) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  line.rate = 6e6;
  for (int step = 0; step < 4000; ++step) {
    line.step(0.99 * static_cast<double>(follower.rate()) * 0.01);
    auto seen = line.sample(true);
    seen.full = false;
    if (step % 5 == 0) follower.sample(seen);
  }
  EXPECT_LT(follower.delivers(), 1.1 * line.rate);
  EXPECT_LT(line.sample(true).queue, 20ms);
}

TEST(RateFollower, NothingIsLearntOfWhatNobodyHasSaidYet) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  const auto before = follower.delivers();
  auto seen = line.sample(true);
  for (int step = 0; step < 100; ++step) {
    seen.now += 50ms;
    follower.sample(seen);
  }
  EXPECT_EQ(follower.delivers(), before);
}

/// As between two fragments: the little that is sent then does not show the link's rate.
TEST(RateFollower, WhatIsSentWhileLittleIsToBeSentSlowsNothingDown) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  const auto before = follower.delivers();
  for (int step = 0; step < 6000; ++step) {
    line.step(step % 5 == 0 ? 100 : 0);
    auto seen = line.sample(true);
    seen.full = false;
    if (step % 5 == 0) follower.sample(seen);
  }
  EXPECT_EQ(follower.delivers(), before);
  EXPECT_GE(follower.rate(), 0.85 * line.rate);
}

TEST(RateFollower, WhoHadCountedMayBeGone) {
  Line line;
  RateFollower follower;
  run(follower, line, 10s);
  const auto before = follower.delivers();
  auto seen = line.sample(true);
  for (int sample = 0; sample < 100; ++sample) {
    seen.now = seen.arrived_at += 50ms;
    seen.arrived = sample < 2 ? seen.arrived : 1000;
    follower.sample(seen);
  }
  EXPECT_LE(follower.delivers(), before);
}

TEST(RateFollower, WithoutAnyTrafficThereIsNoLimit) {
  RateFollower follower;
  Line line;
  for (int i = 0; i < 100; ++i) {
    line.step(0);
    follower.sample(line.sample(false));
  }
  EXPECT_EQ(follower.rate(), 0U);
  EXPECT_EQ(follower.delivers(), 0U);
}

TEST(FairShares, WhatOneDoesNotTakeGoesToTheOthers) {
  const auto shares = [](std::uint64_t total, std::vector<std::uint64_t> caps) {
    return fair_shares(total, caps);
  };
  EXPECT_THAT(shares(90, {0, 0, 0}), ElementsAre(30, 30, 30));
  EXPECT_THAT(shares(90, {10, 0, 0}), ElementsAre(10, 40, 40));
  EXPECT_THAT(shares(90, {0, 50, 10}), ElementsAre(40, 40, 10));
  EXPECT_THAT(shares(90, {20, 5, 10}), ElementsAre(20, 5, 10)) << "the rest is not assigned";
  EXPECT_THAT(shares(90, {}), ElementsAre());
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
