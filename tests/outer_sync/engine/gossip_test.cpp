// Averages of local parameters in pairs, between two syncs of a fragment. The numbers are exact: inner steps
// move every element by the same amount, and fp32 loses nothing.

#include <gmock/gmock.h>

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using testing::Each;
using testing::ElementsAre;

const FragmentLayout pair_layout({{0, 32}}, 16);

/// Plain averages every `every` steps, applied `delay` steps later, with exchanges every `gossip_every`.
OuterConfig gossiping(std::int64_t every, std::int64_t delay, std::int64_t gossip_every,
                      std::int64_t fragments = 1) {
  auto config = averaging(fragments, every, delay, std::nullopt);
  config.gossip_every = gossip_every;
  return config;
}

/// Two replicas that are each other's partner in every exchange. Their rounds are not connected.
class Pair : public testing::Test {
 protected:
  void begin(const OuterConfig& config) {
    for (auto* one : {&a, &b}) {
      one->emplace(config, pair_layout);
      begin_at_zero(**one);
      (*one)->exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
    }
  }
  /// One inner step of both.
  void step(float of_a, float of_b) {
    a->step(of_a);
    b->step(of_b);
  }
  void deliver() {
    a->exchange.of_partner = b->exchange.exchanged;
    b->exchange.of_partner = a->exchange.exchanged;
  }
  void step_and_deliver(int count, float of_a, float of_b) {
    for (int i = 0; i < count; ++i) {
      step(of_a, of_b);
      deliver();
    }
  }

  std::optional<LoneReplica> a, b;
};

// Exchanges at steps 4 and 8, averaged one step later: at step 4 the two are at 4 and -12.
TEST_F(Pair, BothGetTheirMeanAndKeepTheStepsSince) {
  begin(gossiping(12, 1, 4));
  step_and_deliver(4, 1, -3);
  EXPECT_THAT(a->local.values, Each(4.0F));
  EXPECT_THAT(b->local.values, Each(-12.0F));
  step_and_deliver(1, 1, -3);
  EXPECT_THAT(a->local.values, Each(-4.0F + 1));
  EXPECT_THAT(b->local.values, Each(-4.0F - 3));
  EXPECT_EQ(a->loop->gossip().averaged, 1U);
  step_and_deliver(4, 1, -3);
  EXPECT_THAT(a->local.values, Each(-8.0F + 1)) << "the mean at step 8, and one step";
  EXPECT_THAT(b->local.values, Each(-8.0F - 3));
  EXPECT_THAT(a->loop->global_parameters(), Each(0.0F)) << "exchanges change no global parameters";
}

// The round at step 12 contributes what the exchanges left in the local parameters.
TEST_F(Pair, TheNextRoundContainsTheAverages) {
  begin(gossiping(12, 1, 4));
  step_and_deliver(12, 1, -3);
  EXPECT_EQ(a->loop->gossip().averaged, 2U);
  ASSERT_EQ(a->exchange.contributions.size(), 2U);
  float sent = 0;
  std::memcpy(&sent, a->exchange.contributions[0].bytes->data(), sizeof sent);
  EXPECT_EQ(sent, 8.0F - 4) << "global - local: -8 after step 8, and four steps of 1";
  step_and_deliver(1, 1, -3);
  EXPECT_THAT(a->loop->global_parameters(), Each(-4.0F)) << "a round of its own contribution alone";
}

TEST_F(Pair, WhatArrivesLateIsAveragedThen) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 6; ++i) step(1, -3);
  EXPECT_THAT(a->local.values, Each(6.0F));
  deliver();
  step(1, -3);
  EXPECT_THAT(a->local.values, Each(-4.0F + 3));
  EXPECT_THAT(b->local.values, Each(-4.0F - 9));
  EXPECT_EQ(a->loop->gossip().averaged, 1U);
}

TEST_F(Pair, WhatDoesNotArriveBeforeTheNextIsMissed) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 8; ++i) step(1, -3);
  EXPECT_EQ(a->loop->gossip().missed, 1U) << "the exchange of step 8 has replaced that of step 4";
  for (int i = 0; i < 4; ++i) step(1, -3);
  EXPECT_EQ(a->loop->gossip().missed, 2U) << "a round has been sent";
  deliver();
  step(1, -3);
  step(1, -3);
  EXPECT_EQ(a->loop->gossip().averaged, 0U);
  EXPECT_THAT(a->local.values, Each(14.0F));
}

// A round weighs contributions by tokens, so exchanges do too. At step 4 the two are at 4 and -12, with 3 and
// 1 tokens a step; the mean is 3/4 4 + 1/4 (-12) = 0.
TEST_F(Pair, TheMeanIsWeightedByTokens) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 5; ++i) {
    a->step(1, 3);
    b->step(-3, 1);
    deliver();
  }
  EXPECT_THAT(a->local.values, Each(0.0F + 1));
  EXPECT_THAT(b->local.values, Each(0.0F - 3));
}

// A replica that has just copied the state has nothing of its own.
TEST_F(Pair, WithoutTokensItTakesThePartnersPart) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 5; ++i) {
    a->step(0, 0);
    b->step(-3, 1);
    deliver();
  }
  EXPECT_THAT(a->local.values, Each(-12.0F));
  EXPECT_THAT(b->local.values, Each(-12.0F - 3));
}

// Before its first step it has nothing to compare a norm with.
TEST_F(Pair, WithoutTokensItRefusesNothing) {
  auto config = gossiping(12, 1, 4);
  config.reject = 2;
  begin(config);
  for (int i = 0; i < 5; ++i) {
    a->step(0, 0);
    b->step(-3, 1);
    deliver();
  }
  EXPECT_EQ(a->loop->gossip().refused, 0U);
  EXPECT_THAT(a->local.values, Each(-12.0F));
}

// Fragment 2 is sent at step 8 and due at step 10, where fragment 1 has an exchange. Its result is late: the
// exchange begins when the step is completed, once.
TEST(GossipSchedule, AStepThatIsCompletedLaterHasItsExchanges) {
  LoneReplica replica(gossiping(12, 2, 6, 3), layout_of(3));
  begin_at_zero(replica);
  bool commits = true;
  replica.exchange.commits = [&](FragmentId, protocol::Round) { return commits; };
  replica.exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
  for (int i = 0; i < 9; ++i) replica.step(0.5F);
  commits = false;
  for (int i = 0; i < 3; ++i) replica.step(0.5F);
  EXPECT_EQ(replica.loop->step(), 10U);
  EXPECT_FALSE(replica.exchange.exchanged.contains({1, 10}));
  commits = true;
  replica.step(0.5F);
  ASSERT_TRUE(replica.exchange.exchanged.contains({1, 10}));
  EXPECT_EQ(replica.exchange.exchanged.at({1, 10}).chunks.size(), replica.layout.chunks_of(1).size());
}

// If one side misses it and the other does not, their sum changes, and nothing else.
TEST_F(Pair, OneSideMayMissIt) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 4; ++i) step(1, -3);
  a->exchange.of_partner = b->exchange.exchanged;
  for (int i = 0; i < 4; ++i) step(1, -3);
  EXPECT_THAT(a->local.values, Each(-4.0F + 4));
  EXPECT_THAT(b->local.values, Each(-24.0F));
  EXPECT_EQ(a->loop->gossip().averaged, 1U);
  EXPECT_EQ(b->loop->gossip().missed, 1U);
}

// Both lose something to the codec, and both apply what the other decodes: the sum stays.
TEST_F(Pair, TheSumStaysTheSameUnderALossyCodec) {
  auto config = gossiping(12, 1, 4);
  config.codec = "4bit";
  begin(config);
  const auto move = [](float by) {
    return [by](std::uint64_t i) { return by * static_cast<float>(static_cast<int>(i % 7) - 2); };
  };
  for (int i = 0; i < 5; ++i) {
    a->step(move(0.25F));
    b->step(move(-1.5F));
    deliver();
  }
  ASSERT_EQ(a->loop->gossip().averaged, 1U);
  double before = 0, after = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const double sum = 5 * (0.25 - 1.5) * (static_cast<int>(i % 7) - 2);
    EXPECT_NEAR(a->local.values[i] + b->local.values[i], sum, 1e-5);
    before += std::abs(5 * 1.75 * (static_cast<int>(i % 7) - 2));
    after += std::abs(a->local.values[i] - b->local.values[i]);
  }
  EXPECT_LT(after, 0.5 * before) << "and the two are closer";
}

TEST_F(Pair, APartThatDoesNotDecodeIsRefused) {
  auto config = gossiping(12, 1, 4);
  config.codec = "4bit";
  begin(config);
  for (int i = 0; i < 4; ++i) step(1, -3);
  auto broken = b->exchange.exchanged.at({0, 4});
  broken.chunks[1] = std::make_shared<const Bytes>(broken.chunks[1]->size(), std::byte{0xff});
  a->exchange.of_partner.emplace(std::pair{0U, 4U}, broken);
  step(1, -3);
  EXPECT_EQ(a->loop->gossip().refused, 1U);
  EXPECT_THAT(a->local.values, Each(5.0F));
}

TEST_F(Pair, APartFarLargerThanItsOwnIsRefusedWithOuterReject) {
  for (const double reject : {0.0, 2.0, 4.0}) {
    auto config = gossiping(12, 1, 4);
    config.reject = reject;
    begin(config);
    step_and_deliver(5, 1, -3);
    const bool refused = reject == 2;  // the partner's norm is three times this one's
    EXPECT_EQ(a->loop->gossip().refused, refused ? 1U : 0U) << reject;
    EXPECT_EQ(b->loop->gossip().refused, 0U) << "the smaller part is no danger";
    EXPECT_THAT(a->local.values, Each(refused ? 5.0F : -3.0F));
  }
}

/// Encodes fragment 0 of a state in which local and global parameters differ.
std::vector<Bytes> encoded_parts(OuterState& state, const OuterEncoding& how, const FragmentLayout& layout) {
  const BufferPool buffers(1024, 4);
  std::vector<Bytes> out;
  state.encode(0, how, buffers, [&](const EncodedChunk& chunk) { out.push_back(*chunk.bytes); }).finish();
  EXPECT_EQ(out.size(), layout.chunks_of(0).size());
  return out;
}

TEST(GossipEncoding, ResidualsBelongToTheRounds) {
  PlainParameters local(std::vector<float>(32, 0.0F));
  OuterState with(pair_layout, local, true), without(pair_layout, local, false);
  for (std::size_t i = 0; i < 32; ++i) local.values[i] = 0.1F * static_cast<float>(i % 5);
  OuterEncoding how{.codec = quant::default_spec(quant::CodecKind::lloyd2), .round = 1, .carried = 1};
  static_cast<void>(encoded_parts(with, how, pair_layout));
  BinaryWriter before, after;
  with.save_own(before);
  how.uses_residual = false;
  EXPECT_EQ(encoded_parts(with, how, pair_layout), encoded_parts(without, how, pair_layout))
      << "none is added";
  with.save_own(after);
  EXPECT_EQ(before.take(), after.take()) << "and none is changed";
}

/// Steps at which a replica begins exchanges of fragment `p`.
std::vector<std::uint64_t> exchanges_of(const OuterConfig& config, FragmentId p, int steps) {
  const auto layout = layout_of(static_cast<FragmentId>(config.num_fragments));
  LoneReplica replica(config, layout);
  begin_at_zero(replica);
  replica.exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
  for (int i = 0; i < steps; ++i) replica.step(0.5F);
  std::vector<std::uint64_t> out;
  for (const auto& [place, part] : replica.exchange.exchanged) {
    EXPECT_EQ(part.chunks.size(), layout.chunks_of(place.first).size());
    if (place.first == p) out.push_back(place.second);
  }
  return out;
}

// Counted back from the next send, and only while no round of the fragment is in flight.
TEST(GossipSchedule, ExchangesAreEvenlySpacedBetweenTwoSyncs) {
  EXPECT_THAT(exchanges_of(gossiping(10, 2, 3), 0, 22), ElementsAre(1, 4, 7, 14, 17));
  EXPECT_THAT(exchanges_of(gossiping(12, 1, 4), 0, 24), ElementsAre(4, 8, 16, 20));
  EXPECT_THAT(exchanges_of(gossiping(12, 0, 11), 0, 30), ElementsAre(1, 13, 25));
  // Not at the step at which a result is applied, where local and global parameters are equal.
  EXPECT_THAT(exchanges_of(gossiping(12, 0, 4), 0, 24), ElementsAre(4, 8, 16, 20));
  EXPECT_THAT(exchanges_of(gossiping(12, 2, 5), 0, 24), ElementsAre(2, 7, 19));
  // An interval too short for one has none.
  auto config = gossiping(4, 1, 6);
  config.sync_every = {};
  config.sync_every.parts = {{0, 4}, {8, 16}};
  EXPECT_THAT(exchanges_of(config, 0, 40), ElementsAre(12, 18, 28, 34));
  // Fragment 1 of 3 is sent at steps 4, 16, ...
  EXPECT_THAT(exchanges_of(gossiping(12, 1, 4, 3), 1, 24), ElementsAre(8, 12, 20, 24));
}

TEST(GossipSchedule, NoneTakePlaceWithoutTheKey) {
  EXPECT_THAT(exchanges_of(averaging(1, 10, 2, std::nullopt), 0, 22), ElementsAre());
}

TEST(GossipSchedule, NoneTakePlaceInTheWarmUp) {
  auto config = gossiping(10, 2, 3);
  config.warmup_steps = 6;
  const FragmentLayout layout({{0, 16}}, 16);
  LoneReplica replica(config, layout);
  replica.exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
  for (int i = 0; i < 17; ++i) replica.step(0.5F);
  std::vector<std::uint64_t> steps;
  for (const auto& [place, part] : replica.exchange.exchanged) steps.push_back(place.second);
  EXPECT_THAT(steps, ElementsAre(7, 10, 13));
}

// A replica that copies the state of others gives up what was under way.
TEST_F(Pair, CopyingTheStateEndsAnExchange) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 4; ++i) step(1, -3);
  a->loop->finish_hand_overs();
  begin_at_zero(*a);
  deliver();
  step(1, -3);
  EXPECT_THAT(a->local.values, Each(1.0F));
  EXPECT_EQ(a->loop->gossip().missed, 1U);
}

// A checkpoint does not contain exchanges under way, so that both of a pair have lost them after a resume.
TEST_F(Pair, ACheckpointEndsAnExchange) {
  begin(gossiping(12, 1, 4));
  for (int i = 0; i < 4; ++i) step(1, -3);
  const auto saved = a->loop->save();
  ASSERT_TRUE(saved);
  LoneReplica again(a->config, pair_layout);
  again.exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
  again.local.values = a->local.values;
  again.loop->restore(*saved);
  again.exchange.of_partner = b->exchange.exchanged;
  again.step(1);
  EXPECT_THAT(again.local.values, Each(5.0F));
}

TEST(GossipConfig, RefusesWhatCannotWork) {
  const auto problem = [](OuterConfig config) -> std::string {
    try {
      config.resolve();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(problem(gossiping(12, 1, 4)), "accepted");
  EXPECT_EQ(problem(gossiping(12, 1, 10)), "accepted");
  EXPECT_THAT(
      problem(gossiping(12, 1, 11)),
      testing::HasSubstr("outer.gossip_every is 11 and outer.sync_every is 12; expected gossip_every + "
                         "sync_delay < sync_every, with sync_delay 1"));
  EXPECT_THAT(problem(gossiping(12, 4, 4)), testing::HasSubstr("expected gossip_every > sync_delay"));
  auto parallel = gossiping(12, 1, 4);
  parallel.method = Method::data_parallel;
  EXPECT_EQ(problem(parallel), "accepted") << "the method has none";
}

}  // namespace
}  // namespace isthmus::outer_sync
