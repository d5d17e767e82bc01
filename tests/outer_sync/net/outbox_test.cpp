// The queue for one peer, and an emulated link, without sockets and clock.

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "isthmus/base/random.h"
#include "net/mesh/outbox.h"
#include "net/rate/emulated_link.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using Receipt = Outbox::Receipt;

constexpr std::size_t outbox_lanes = 3;

Receipt receipt_of(std::uint64_t round, ChunkId chunk = 0, protocol::ViewNumber view = 1) {
  return {view, protocol::ChunkKey{round, chunk, 0, protocol::ChunkKind::contribution}};
}

/// A frame with its number as first byte.
Frame frame_of(std::uint8_t number, std::size_t size = 1) {
  Bytes bytes(size, std::byte{0});
  bytes[0] = std::byte{number};
  return {FrameType::chunk, {}, std::make_shared<const Bytes>(std::move(bytes))};
}

std::vector<int> take_all(Outbox& outbox, std::size_t lane = 0) {
  std::vector<int> numbers;
  while (const auto frame = outbox.take(lane, 0s))
    numbers.push_back(std::to_integer<int>(frame->body->front()));
  return numbers;
}

TEST(Outbox, WhatIsDueFirstLeavesFirst) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 7, receipt_of(1, 0));
  outbox.put(frame_of(2), 7, receipt_of(1, 1));
  outbox.put(frame_of(3), 2, receipt_of(2, 0));
  outbox.put(frame_of(4), 0, {1, std::nullopt});
  EXPECT_THAT(take_all(outbox), ElementsAre(4, 3, 1, 2)) << "frames of one round in the order they were put";
  EXPECT_EQ(outbox.under_way(), 4U);
}

TEST(Outbox, WhatALostLaneHadLeavesAgainBeforeWhatIsDueLater) {
  Outbox outbox(outbox_lanes);
  for (std::uint8_t i = 1; i <= 4; ++i) outbox.put(frame_of(i), i, receipt_of(i));
  ASSERT_TRUE(outbox.take(0, 0s) && outbox.take(1, 0s) && outbox.take(0, 0s));
  outbox.acknowledged(receipt_of(1), 1s);
  outbox.lane_lost(0);
  EXPECT_THAT(take_all(outbox, 1), ElementsAre(3, 4)) << "2 is under way on another lane, 1 has arrived";
}

TEST(Outbox, WhatArrivedBeforeItsLaneWasLostIsNotSentAgain) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1));
  ASSERT_TRUE(outbox.take(0, 0s));
  outbox.lane_lost(0);
  outbox.acknowledged(receipt_of(1), 1s);
  EXPECT_TRUE(outbox.empty());
  EXPECT_EQ(outbox.bytes(), 0U);
}

TEST(Outbox, WhatWaitsIsNotPutTwiceAndWhatIsUnderWayIsSentOnceMore) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1));
  outbox.put(frame_of(2), 1, receipt_of(1));
  EXPECT_THAT(take_all(outbox), ElementsAre(1));
  outbox.put(frame_of(3), 1, receipt_of(1));
  EXPECT_THAT(take_all(outbox), ElementsAre(3));
  outbox.acknowledged(receipt_of(1), 1s);
  EXPECT_EQ(outbox.bytes(), 0U);
}

TEST(Outbox, WithAViewEndsWhatWasToBeSentInOlderOnes) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1, 0, 4));
  ASSERT_TRUE(outbox.take(0, 0s));
  outbox.put(frame_of(2), 1, receipt_of(2, 0, 4));
  outbox.put(frame_of(3), 2, receipt_of(3, 0, 5));
  outbox.view_begun(5);
  outbox.lane_lost(0);
  EXPECT_THAT(take_all(outbox), ElementsAre(3));
}

TEST(Outbox, WhatIsRelayedForOneIsCountedAndForgottenAlone) {
  Outbox outbox(outbox_lanes);
  auto relayed = receipt_of(1);
  relayed.beyond = 7;
  outbox.put(frame_of(1, 10), 1, receipt_of(1));
  outbox.put(frame_of(2, 20), 1, relayed);
  EXPECT_EQ(outbox.bytes_relayed(7), sizeof(FrameHeader) + 20);
  EXPECT_EQ(outbox.bytes_relayed(8), 0U);
  EXPECT_THAT(take_all(outbox), ElementsAre(1, 2))
      << "the relayed frame is separate, although it carries the same chunk";
  outbox.put(frame_of(3, 30), 1, relayed);
  EXPECT_EQ(outbox.bytes_relayed(7), sizeof(FrameHeader) + 30);
  outbox.forget_relayed(7);
  EXPECT_EQ(outbox.bytes_relayed(7), 0U);
  EXPECT_EQ(outbox.bytes(), sizeof(FrameHeader) + 10);
  outbox.lane_lost(0);
  EXPECT_THAT(take_all(outbox), ElementsAre(1));
}

// Only what is of this sender, of these chunks and of earlier exchanges; not rounds with the same number.
TEST(Outbox, DropsExchangesThatAreOver) {
  Outbox outbox(outbox_lanes);
  const auto exchange = [](std::uint64_t step, ChunkId chunk, protocol::MemberIndex sender) {
    return Outbox::Receipt{1, protocol::ChunkKey{step, chunk, sender, protocol::ChunkKind::exchange}};
  };
  outbox.put(frame_of(1), 9, exchange(10, 0, 0));
  outbox.put(frame_of(2), 9, exchange(10, 1, 0));
  outbox.put(frame_of(3), 9, exchange(14, 0, 0));
  outbox.put(frame_of(4), 9, exchange(10, 0, 1));
  outbox.put(frame_of(5), 9, {1, protocol::ChunkKey{10, 0, 0, protocol::ChunkKind::contribution}});
  outbox.put(frame_of(6), 1, exchange(12, 0, 0));
  ASSERT_TRUE(outbox.take(0, 0s)) << "the one of step 12 is in flight";
  const auto before = outbox.bytes();
  outbox.drop_exchanges(0, {0, 1}, 14);
  EXPECT_EQ(outbox.bytes(), before - 2 * size_of(frame_of(1)));
  outbox.lane_lost(0);
  EXPECT_THAT(take_all(outbox), ElementsAre(2, 3, 4, 5));
}

TEST(Outbox, ALaneHasStalledWhenOthersDeliverWhatWasSentLater) {
  Outbox outbox(outbox_lanes);
  std::uint64_t round = 0;
  const auto send = [&](std::size_t lane, Outbox::Time now) {
    outbox.put(frame_of(1), 1, receipt_of(++round));
    EXPECT_TRUE(outbox.take(lane, now));
    return receipt_of(round);
  };
  (void)send(0, 0s);
  (void)send(1, 0s);
  EXPECT_THAT(outbox.stalled(1min), IsEmpty()) << "no lane delivers, so the peer or the whole link is slow";
  for (int i = 0; i < 100; ++i) outbox.acknowledged(send(2, 100ms + i * 1ms), 110ms + i * 1ms);
  EXPECT_THAT(outbox.stalled(900ms), IsEmpty()) << "soon";
  EXPECT_THAT(outbox.stalled(1100ms), ElementsAre(0, 1));
  outbox.lane_lost(0);
  EXPECT_THAT(outbox.stalled(1100ms), ElementsAre(1)) << "the lost lane's chunk waits again";
  outbox.acknowledged(receipt_of(2), 1100ms);
  EXPECT_THAT(outbox.stalled(1min), IsEmpty());
}

TEST(Outbox, WhatIsOverdueOnASilentLaneGoesByAFreeOneAndShowsWhichIsBroken) {
  Outbox outbox(outbox_lanes);
  for (const std::uint8_t round : {1, 2}) {
    outbox.put(frame_of(round), round, receipt_of(round));
    ASSERT_TRUE(outbox.take(0, 0s));
  }
  EXPECT_FALSE(outbox.take_overdue(1, 900ms)) << "soon";
  EXPECT_FALSE(outbox.take_overdue(0, 2s)) << "the silent lane must not repeat its own chunk";
  const auto first = outbox.take_overdue(1, 2s);
  ASSERT_TRUE(first);
  EXPECT_EQ(std::to_integer<int>(first->body->front()), 1) << "the most urgent chunk first";
  EXPECT_FALSE(outbox.take_overdue(1, 3s)) << "only one repeat at a time";
  EXPECT_THAT(outbox.stalled(3s), IsEmpty()) << "no lane has delivered yet";
  outbox.acknowledged(receipt_of(1), 4s, 1);
  EXPECT_THAT(outbox.stalled(4s), ElementsAre(0));
  outbox.lane_lost(0);
  EXPECT_THAT(outbox.stalled(1min), IsEmpty());
  EXPECT_THAT(take_all(outbox), ElementsAre(2));
}

TEST(Outbox, ALaneThatWasOnlySlowIsNotTakenForBroken) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1));
  ASSERT_TRUE(outbox.take(0, 0s));
  ASSERT_TRUE(outbox.take_overdue(1, 2s));
  outbox.acknowledged(receipt_of(1), 3s, 1);
  EXPECT_THAT(outbox.stalled(3s), ElementsAre(0)) << "another lane delivered its chunk";
  outbox.acknowledged(receipt_of(1), 3s, 0);
  EXPECT_THAT(outbox.stalled(1min), IsEmpty());
}

TEST(Outbox, EachLaneIsTriedOnceWhileNothingComesBack) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1));
  ASSERT_TRUE(outbox.take(0, 0s));
  std::vector<std::size_t> tried;
  for (auto now = 0s; now < 1min; now += 1s) {
    for (std::size_t lane = 0; lane < outbox_lanes; ++lane) {
      if (outbox.take_overdue(lane, now)) tried.push_back(lane);
    }
  }
  EXPECT_THAT(tried, ElementsAre(1, 2));
  EXPECT_EQ(outbox.bytes(), size_of(frame_of(1))) << "the repeat must not be counted twice";
}

TEST(Outbox, OnASlowLineAStallTakesLongerToShow) {
  Outbox outbox(outbox_lanes);
  outbox.put(frame_of(1), 1, receipt_of(1));
  ASSERT_TRUE(outbox.take(0, 0s));
  for (std::uint64_t i = 2; i < 100; ++i) {
    outbox.put(frame_of(1), 1, receipt_of(i));
    ASSERT_TRUE(outbox.take(1, 1s));
    outbox.acknowledged(receipt_of(i), 2s);
  }
  EXPECT_THAT(outbox.stalled(7s), IsEmpty()) << "here a chunk takes a second";
  EXPECT_THAT(outbox.stalled(9s), ElementsAre(0));
}

/// Compares with a plain record of which chunks were put and which were acknowledged.
TEST(Outbox, NothingIsLostAndNothingCountedTwiceWhateverHappens) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Outbox outbox(outbox_lanes);
    std::map<Receipt, std::size_t> owed;
    std::uint64_t drawn = 0;
    const auto draw = [&](std::uint64_t below) { return random_bits(seed, 1, drawn++) % below; };
    const auto random_receipt = [&] {
      auto receipt = receipt_of(draw(6), static_cast<ChunkId>(draw(4)));
      receipt.beyond = draw(3);
      return receipt;
    };
    for (int turn = 0; turn < 300; ++turn) {
      const auto lane = draw(outbox_lanes);
      switch (draw(7)) {
        case 0:
        case 1: {
          const auto receipt = random_receipt();
          outbox.put(frame_of(1, 10), receipt.key->round, receipt);
          owed[receipt] = sizeof(FrameHeader) + 10;
          break;
        }
        case 2:
          (void)outbox.take(lane, turn * 100ms);
          break;
        case 3: {
          const auto receipt = random_receipt();
          const auto by = draw(2) == 0 ? std::nullopt : std::optional<std::size_t>(lane);
          outbox.acknowledged(receipt, turn * 100ms, by);
          owed.erase(receipt);
          break;
        }
        case 5:
          (void)outbox.take_overdue(lane, turn * 100ms);
          break;
        case 4: {
          const auto beyond = 1 + draw(2);
          outbox.forget_relayed(beyond);
          std::erase_if(owed, [&](const auto& entry) { return entry.first.beyond == beyond; });
          break;
        }
        default:
          outbox.lane_lost(lane);
      }
      std::size_t bytes = 0;
      for (const auto& [receipt, size] : owed) bytes += size;
      ASSERT_EQ(outbox.bytes(), bytes) << "seed " << seed << ", turn " << turn;
      for (const protocol::ReplicaId beyond : {1, 2}) {
        std::size_t relayed = 0;
        for (const auto& [receipt, size] : owed) relayed += receipt.beyond == beyond ? size : 0;
        ASSERT_EQ(outbox.bytes_relayed(beyond), relayed) << "seed " << seed << ", turn " << turn;
      }
    }
    for (std::size_t lane = 0; lane < outbox_lanes; ++lane) outbox.lane_lost(lane);
    std::size_t left = 0;
    while (outbox.take(0, 0s)) ++left;
    EXPECT_EQ(left, owed.size()) << "seed " << seed;
  }
}

// ---- the emulated link ----

TEST(EmulatedLink, CarriesNoMoreThanItsRate) {
  EmulateConfig config;
  config.rate = {8e6};  // one megabyte per second
  EmulatedLink link(config, 1);
  const auto start = EmulatedLink::Clock::time_point(1h);
  EXPECT_EQ(link.free_at(start), start);
  EXPECT_EQ(link.put(100'000, start), 100ms) << "until its last byte has left";
  EXPECT_EQ(link.free_at(start), start + 100ms);
  EXPECT_EQ(link.put(50'000, start + 100ms), 50ms);
  EXPECT_EQ(link.free_at(start + 1s), start + 1s) << "a pause must not save up sending time";
}

TEST(EmulatedLink, JitterAndLossComeAsOftenAsTheyAreAskedFor) {
  EmulateConfig config;
  config.rtt = {0.1};
  config.jitter = {0.02};
  config.loss = 0.01;
  EmulatedLink link(config, 7);
  const auto now = EmulatedLink::Clock::time_point(1h);
  int lost = 0;
  double jitter = 0;
  constexpr int frames = 20'000;
  for (int i = 0; i < frames; ++i) {
    const auto took = std::chrono::duration<double>(link.put(2000, now)).count();  // two packets
    const bool again = took >= 0.1;
    lost += again ? 1 : 0;
    jitter += took - (again ? 0.1 : 0);
    ASSERT_LE(took, again ? 0.12 : 0.02);
  }
  EXPECT_NEAR(lost, frames * (1 - 0.99 * 0.99), 80) << "four standard deviations";
  EXPECT_NEAR(jitter / frames, 0.01, 0.0003);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
