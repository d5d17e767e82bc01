// Exchanges in pairs: the partners, and the state machine of one member.

#include "isthmus/outer_sync/protocol/exchanges.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <variant>

namespace isthmus::outer_sync::protocol {
namespace {

using testing::HasSubstr;

View trainers_in(std::size_t trainers, ViewNumber number = 3) {
  View view{.number = number, .members = {}, .owners = {}};
  for (std::size_t m = 0; m < trainers; ++m) view.members.push_back({"r" + std::to_string(m), 1, "", 0});
  return view;
}

TEST(Pairs, EveryTrainerHasOnePartnerAndIsItsPartner) {
  for (std::size_t trainers = 1; trainers <= 9; ++trainers) {
    const auto view = trainers_in(trainers);
    for (std::uint64_t step = 1; step < 200; ++step) {
      std::size_t without = 0;
      for (MemberIndex m = 0; m < trainers; ++m) {
        const auto partner = partner_of(view, m, 0, step);
        if (!partner) {
          ++without;
          continue;
        }
        ASSERT_NE(*partner, m);
        ASSERT_LT(*partner, trainers);
        ASSERT_EQ(partner_of(view, *partner, 0, step), m);
      }
      ASSERT_EQ(without, trainers % 2) << trainers << " trainers at step " << step;
    }
  }
}

// Over many exchanges every two trainers meet equally often, whichever steps have exchanges.
TEST(Pairs, AllMeetEquallyOften) {
  for (const std::size_t trainers : {4, 5, 8}) {
    for (const std::uint64_t every : {1, 3, 7}) {
      std::map<std::pair<MemberIndex, MemberIndex>, int> met;
      constexpr int exchanges = 14000;
      const auto view = trainers_in(trainers);
      for (std::uint64_t i = 1; i <= exchanges; ++i) {
        for (MemberIndex m = 0; m < trainers; ++m) {
          const auto partner = partner_of(view, m, 2, i * every);
          if (partner && m < *partner) ++met[{m, *partner}];
        }
      }
      const auto pairs = trainers * (trainers - 1) / 2;
      EXPECT_EQ(met.size(), pairs);
      const double expected = static_cast<double>(trainers / 2) * exchanges / static_cast<double>(pairs);
      for (const auto& [pair, times] : met) EXPECT_NEAR(times, expected, 0.06 * expected);
    }
  }
}

TEST(Pairs, ReducersAreInNoPair) {
  auto view = trainers_in(3);
  view.members[1].kind = MemberKind::reducer;
  for (std::uint64_t step = 1; step < 20; ++step) {
    EXPECT_EQ(partner_of(view, 0, 0, step), MemberIndex{2});
    EXPECT_EQ(partner_of(view, 1, 0, step), std::nullopt);
  }
}

/// Member 0 of two. Fragment 0 has chunks 0 and 1, fragment 1 has chunk 2, shorter.
class Exchange : public testing::Test {
 protected:
  Exchange() { exchanges.begin_view(trainers_in(2), 0); }

  SharedBytes bytes(ChunkId chunk, int value) const {
    return std::make_shared<const Bytes>(4 * layout.chunk(chunk).size, static_cast<std::byte>(value));
  }
  ChunkMessage theirs(ChunkId chunk, std::uint64_t step, int value = 7) const {
    return {3, {step, chunk, 1, ChunkKind::exchange}, bytes(chunk, value), 60 + step};
  }
  void send(FragmentId p, std::uint64_t step) {
    const auto chunks = layout.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) exchanges.send(k, step, bytes(k, 1), 40 + step);
  }
  void feed(const ChunkMessage& message) {
    const auto problem = exchanges.receive(1, message);
    EXPECT_FALSE(problem) << *problem;
  }
  std::string refused(const ChunkMessage& message, MemberIndex from = 1) {
    static_cast<void>(take());
    const auto problem = exchanges.receive(from, message);
    EXPECT_EQ(take().all, 0U) << "a refused chunk must not even be acknowledged";
    return problem.value_or("accepted");
  }
  struct Actions {
    std::vector<SendChunk> chunks;
    std::vector<SendAck> acks;
    std::vector<Exchanged> complete;
    std::vector<DropUnsent> dropped;
    std::size_t all = 0;
  };
  Actions take() {
    Actions out;
    for (auto& action : exchanges.take_actions()) {
      ++out.all;
      if (auto* chunk = std::get_if<SendChunk>(&action)) out.chunks.push_back(*chunk);
      if (auto* ack = std::get_if<SendAck>(&action)) out.acks.push_back(*ack);
      if (auto* drop = std::get_if<DropUnsent>(&action)) out.dropped.push_back(*drop);
      if (auto* exchanged = std::get_if<Exchanged>(&action)) out.complete.push_back(*exchanged);
    }
    return out;
  }

  FragmentLayout layout{{{0, 32}, {32, 10}}, 16};
  CodecPlan codecs{.codec = {quant::CodecKind::fp32},
                   .warmup_codec = {quant::CodecKind::bf16},
                   .warmup_rounds = 2,
                   .exchanges = true};
  Exchanges exchanges{layout, codecs};
};

TEST_F(Exchange, IsCompleteWhenAllOfThePartnersChunksAreHere) {
  send(0, 10);
  const auto sent = take();
  ASSERT_EQ(sent.chunks.size(), 2U);
  ASSERT_EQ(sent.dropped.size(), 1U) << "the fragment's earlier exchanges are over";
  EXPECT_EQ(sent.dropped[0].fragment, 0U);
  EXPECT_EQ(sent.dropped[0].before, 10U);
  EXPECT_EQ(sent.chunks[0].peer, 1);
  EXPECT_EQ(sent.chunks[0].message.key, (ChunkKey{10, 0, 0, ChunkKind::exchange}));
  EXPECT_EQ(sent.chunks[0].message.weight, 50U);
  feed(theirs(1, 10, 8));
  EXPECT_TRUE(take().complete.empty());
  feed(theirs(0, 10, 7));
  const auto last = take();
  ASSERT_EQ(last.complete.size(), 1U);
  EXPECT_EQ(last.complete[0].fragment, 0U);
  EXPECT_EQ(last.complete[0].step, 10U);
  EXPECT_EQ(*last.complete[0].chunks.at(0), *bytes(0, 7));
  EXPECT_EQ(*last.complete[0].chunks.at(1), *bytes(1, 8));
  EXPECT_EQ(last.complete[0].weight, 70U);
  feed(theirs(0, 10, 7));
  const auto repeat = take();
  EXPECT_EQ(repeat.acks.size(), 1U) << "a repeat is acknowledged";
  EXPECT_TRUE(repeat.complete.empty()) << "and completes nothing twice";
}

TEST_F(Exchange, AFasterPartnersChunksWait) {
  feed(theirs(2, 10));
  feed(theirs(2, 14));
  EXPECT_TRUE(take().complete.empty());
  send(1, 10);
  auto now = take();
  ASSERT_EQ(now.complete.size(), 1U);
  EXPECT_EQ(now.complete[0].step, 10U);
  send(1, 14);
  now = take();
  ASSERT_EQ(now.complete.size(), 1U);
  EXPECT_EQ(now.complete[0].step, 14U);
}

TEST_F(Exchange, WhatComesAfterTheNextHasBegunIsDropped) {
  send(1, 10);
  send(1, 14);
  static_cast<void>(take());
  feed(theirs(2, 10));
  const auto late = take();
  EXPECT_EQ(late.acks.size(), 1U);
  EXPECT_TRUE(late.complete.empty());
  feed(theirs(2, 14));
  EXPECT_EQ(take().complete.size(), 1U);
}

TEST_F(Exchange, AfterItsEndNothingOfItIsTakenOrRepeated) {
  send(1, 10);
  static_cast<void>(take());
  exchanges.end(1, 10);
  const auto ended = take();
  ASSERT_EQ(ended.dropped.size(), 1U);
  EXPECT_EQ(ended.dropped[0].before, 11U);
  exchanges.repeat_to(1, [](const ChunkKey&) { return true; });
  EXPECT_TRUE(take().chunks.empty());
  feed(theirs(2, 10));
  EXPECT_TRUE(take().complete.empty());
  feed(theirs(2, 11));
  EXPECT_TRUE(take().complete.empty()) << "it has not begun here";
  send(1, 11);
  EXPECT_EQ(take().complete.size(), 1U);
}

// A partner that runs far ahead, or invents steps, costs bounded memory.
TEST_F(Exchange, MemoryIsBounded) {
  for (std::uint64_t step = 1000; step > 100; --step) feed(theirs(2, step));
  EXPECT_EQ(exchanges.chunks_held(), Exchanges::max_kept);
  feed(theirs(2, 10));
  EXPECT_EQ(exchanges.chunks_held(), Exchanges::max_kept);
  send(1, 10);
  EXPECT_EQ(take().complete.size(), 1U);
  for (std::uint64_t step = 2000; step < 2100; ++step) send(1, step);
  EXPECT_EQ(exchanges.chunks_held(), 1U) << "of what is never acknowledged, only the last one is repeated";
}

// One partner's invented steps before the next exchange crowd out no other partner's part.
TEST_F(Exchange, APartnerCrowdsOutOnlyItself) {
  const auto view = trainers_in(4);
  exchanges.begin_view(view, 0);
  std::uint64_t next = 100;
  while (partner_of(view, 0, 1, next) != MemberIndex{2}) ++next;
  for (std::uint64_t step = 3; step < next; ++step) {
    if (partner_of(view, 0, 1, step) == MemberIndex{1}) feed(theirs(2, step));
  }
  EXPECT_EQ(exchanges.chunks_held(), Exchanges::max_kept);
  auto honest = theirs(2, next);
  honest.key.sender = 2;
  EXPECT_EQ(exchanges.receive(2, honest), std::nullopt);
  send(1, next);
  EXPECT_EQ(take().complete.size(), 1U);
}

TEST_F(Exchange, IsRepeatedUntilItIsAcknowledged) {
  const auto all = [](const ChunkKey&) { return true; };
  send(0, 10);
  static_cast<void>(take());
  exchanges.acknowledged(1, 3, {10, 0, 0, ChunkKind::exchange});
  exchanges.acknowledged(1, 2, {10, 1, 0, ChunkKind::exchange});  // of an older view
  exchanges.repeat_to(1, all);
  auto again = take();
  ASSERT_EQ(again.chunks.size(), 1U);
  EXPECT_EQ(again.chunks[0].message.key.chunk, 1U);
  exchanges.peer_begun(1, 3);
  EXPECT_EQ(take().chunks.size(), 1U);
  exchanges.peer_begun(1, 2);
  exchanges.repeat_to(0, all);
  EXPECT_EQ(take().chunks.size(), 0U);
}

TEST_F(Exchange, ANewViewForgetsTheOldOne) {
  send(1, 10);
  feed(theirs(2, 14));
  static_cast<void>(take());
  exchanges.begin_view(trainers_in(2, 4), 0);
  EXPECT_EQ(exchanges.chunks_held(), 0U);
  EXPECT_EQ(exchanges.receive(1, theirs(2, 10)), std::nullopt) << "silently dropped";
  EXPECT_EQ(take().all, 0U);
  exchanges.begin_view(trainers_in(1, 5), 0);
  send(1, 16);
  EXPECT_EQ(take().all, 0U) << "there is no partner";
}

TEST_F(Exchange, RefusesWhatTheProtocolDoesNotAllow) {
  auto wrong = theirs(2, 10);
  wrong.bytes = bytes(0, 1);
  EXPECT_THAT(refused(wrong), HasSubstr("64 bytes; expected 40"));
  wrong = theirs(2, 10);
  wrong.key.sender = 0;
  EXPECT_THAT(refused(wrong), HasSubstr("of another member"));
  wrong = theirs(2, 10);
  wrong.key.chunk = 3;
  EXPECT_THAT(refused(wrong), HasSubstr("unknown number"));
  EXPECT_THAT(refused(theirs(2, 2)), HasSubstr("warm-up"));
  wrong = theirs(2, 10);
  wrong.norms = {{1, 2.0}};
  EXPECT_THAT(refused(wrong), HasSubstr("fields that only a round has"));
  wrong = theirs(2, 10);
  wrong.key.kind = ChunkKind::result;
  EXPECT_THAT(refused(wrong), HasSubstr("unknown kind"));
  codecs.exchanges = false;
  Exchanges without(layout, codecs);
  without.begin_view(trainers_in(2), 0);
  EXPECT_THAT(without.receive(1, theirs(2, 10)).value_or(""), HasSubstr("without outer.gossip_every"));
}

TEST_F(Exchange, RefusesAStrangersPart) {
  exchanges.begin_view(trainers_in(4), 0);
  for (std::uint64_t step = 3; step < 30; ++step) {
    const auto partner = partner_of(trainers_in(4), 0, 1, step);
    for (MemberIndex from = 1; from < 4; ++from) {
      auto message = theirs(2, step);
      message.key.sender = from;
      const auto problem = exchanges.receive(from, message);
      EXPECT_EQ(problem.has_value(), partner != from) << "step " << step << ", from " << from;
      EXPECT_THAT(problem.value_or("not its partner"), HasSubstr("not its partner"));
    }
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
