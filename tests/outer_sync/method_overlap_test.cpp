// Compares co2 and eager with plain loops over single numbers.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "isthmus/base/error.h"
#include "replicas.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using Values = std::vector<float>;
constexpr std::size_t replica_count = 3;
constexpr std::int64_t every = 4;
constexpr std::uint64_t steps = 26;

OuterConfig overlapping(const std::string& method) {
  auto config = config_of(2, every, 0, 0);
  config.method = method_of(method);
  config.final_sync = false;
  config.optimizer.lr = 0.5;
  config.optimizer.momentum = 0.9;
  config.resolve();
  config.take_replicas(replica_count);
  return config;
}

/// Offsets 0 and 2, H = 4.
bool is_sent(FragmentId p, std::uint64_t step) {
  return p == 0 ? step % every == 0 : step % every == every / 2;
}

/// The same run in plain loops. `outer_step` updates an element of a fragment when that is sent, given all
/// replicas' outer gradients of this round.
class Reference {
 public:
  explicit Reference(const FragmentLayout& its_layout)
      : layout(its_layout), global(initial_parameters(layout)), local(replica_count, global), start(local) {}

  using OuterStep = std::function<void(std::size_t element, const Values& sent)>;
  void step(std::uint64_t t, const OuterStep& outer_step) {
    for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
      for (auto i = layout.fragment(p).begin; i < layout.fragment(p).end(); ++i) {
        for (std::size_t m = 0; m < replica_count; ++m) local[m][i] += random_step(m, t, i);
        if (!is_sent(p, t)) continue;
        Values sent;
        for (std::size_t m = 0; m < replica_count; ++m) sent.push_back(start[m][i] - local[m][i]);
        outer_step(i, sent);
        for (std::size_t m = 0; m < replica_count; ++m) local[m][i] = start[m][i];
      }
    }
  }

  const FragmentLayout& layout;
  Values global;
  std::vector<Values> local, start;  ///< by replica; `start`: at the beginning of the round
};

float mean_of(const Values& sent) {
  float sum = 0;
  for (const float x : sent) sum += x;
  return sum / replica_count;
}

struct OverlapSetting {
  double penalty, clip;
};
class Co2 : public testing::TestWithParam<OverlapSetting> {};

TEST_P(Co2, EveryValueOfEveryStepIsTheFormulas) {
  auto config = overlapping("co2");
  config.staleness_penalty = GetParam().penalty;
  config.momentum_clip = GetParam().clip;
  const auto layout = layout_of(2);
  Replicas replicas(config, layout, replica_count, random_step);
  replicas.train(steps);

  Reference reference(layout);
  Values velocity(layout.buffer_size(), 0.0F);
  std::vector<Values> before(layout.buffer_size());  // outer gradients of the previous round
  const auto penalty = static_cast<float>(config.staleness_penalty),
             clip = static_cast<float>(config.momentum_clip);
  bool clipped = false;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    reference.step(t, [&](std::size_t i, const Values& sent) {
      if (!before[i].empty()) {
        float& v = velocity[i];
        v = 0.9F * v + 1 / penalty * mean_of(before[i]);
        if (clip > 0 && std::abs(v) > clip) {
          v = std::copysign(clip, v);
          clipped = true;
        }
        reference.global[i] -= 0.5F * v;
      }
      before[i] = sent;
      for (auto& start : reference.start) start[i] = reference.global[i];
    });
    for (std::size_t m = 0; m < replica_count; ++m) {
      ASSERT_EQ(replicas.at(m).globals[t - 1], reference.global) << "after step " << t;
      ASSERT_EQ(replicas.at(m).locals[t - 1], reference.local[m]) << "replica " << m << " after step " << t;
    }
  }
  EXPECT_EQ(clipped, clip > 0) << "this case no longer shows what the clip is for";
  replicas.expect_agreement();
}

INSTANTIATE_TEST_SUITE_P(Overlap, Co2,
                         testing::Values(OverlapSetting{1, 0}, OverlapSetting{2, 0}, OverlapSetting{1, 0.25},
                                         OverlapSetting{1.5, 0.5}));

class Eager : public testing::TestWithParam<bool> {};

TEST_P(Eager, EveryValueOfEveryStepIsTheFormulas) {
  auto config = overlapping("eager");
  config.optimizer.nesterov = GetParam();
  const auto layout = layout_of(2);
  Replicas replicas(config, layout, replica_count, random_step);
  replicas.train(steps);

  Reference reference(layout);
  const Values zero(layout.buffer_size(), 0.0F);
  Values velocity = zero;
  std::vector<Values> a(replica_count, zero), b(replica_count, zero), before(layout.buffer_size());
  const float share = 1.0F / replica_count;
  for (std::uint64_t t = 1; t <= steps; ++t) {
    reference.step(t, [&](std::size_t i, const Values& sent) {
      if (!before[i].empty()) {
        const float g = mean_of(before[i]);
        velocity[i] = 0.9F * velocity[i] + g;
        reference.global[i] -= 0.5F * (GetParam() ? g + 0.9F * velocity[i] : velocity[i]);
      }
      for (std::size_t m = 0; m < replica_count; ++m) {
        float d = share * sent[m];
        if (!before[i].empty()) d = d + -share * before[i][m];
        b[m][i] = 0.9F * b[m][i] + d;
        a[m][i] -= 0.5F * (GetParam() ? d + 0.9F * b[m][i] : b[m][i]);
        reference.start[m][i] = reference.global[i] + a[m][i];
      }
      before[i] = sent;
    });
    for (std::size_t m = 0; m < replica_count; ++m) {
      ASSERT_EQ(replicas.at(m).globals[t - 1], reference.global) << "after step " << t;
      ASSERT_EQ(replicas.at(m).locals[t - 1], reference.local[m]) << "replica " << m << " after step " << t;
    }
  }
  replicas.expect_agreement();
}

// The paper's form: every replica has its own parameters and momentum, and steps along its fresh outer
// gradient and the others' of the previous round.
TEST_P(Eager, ItIsThePapersUpToRounding) {
  auto config = overlapping("eager");
  config.optimizer.nesterov = GetParam();
  const auto layout = layout_of(2);
  Replicas replicas(config, layout, replica_count, random_step);
  replicas.train(steps);

  Reference reference(layout);
  const Values zero(layout.buffer_size(), 0.0F);
  std::vector<Values> velocity(replica_count, zero),
      before(layout.buffer_size(), Values(replica_count, 0.0F));
  for (std::uint64_t t = 1; t <= steps; ++t) {
    reference.step(t, [&](std::size_t i, const Values& sent) {
      for (std::size_t m = 0; m < replica_count; ++m) {
        const float g = sent[m] / replica_count + (mean_of(before[i]) - before[i][m] / replica_count);
        float& v = velocity[m][i];
        v = 0.9F * v + g;
        reference.start[m][i] -= 0.5F * (GetParam() ? g + 0.9F * v : v);
      }
      before[i] = sent;
    });
    for (std::size_t m = 0; m < replica_count; ++m) {
      for (std::size_t i = 0; i < zero.size(); ++i)
        ASSERT_NEAR(replicas.at(m).locals[t - 1][i], reference.local[m][i], 1e-4) << "after step " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Overlap, Eager, testing::Bool());

// For a single replica without momentum, the global parameters end at the sum of all inner steps, regardless
// of which rounds were late or left this replica out: no step is lost or counted twice.
TEST(WholeRound, WhatIsNotInAResultComesWithTheNext) {
  for (const auto* method : {"co2", "eager"}) {
    for (unsigned pattern = 0; pattern < 64; ++pattern) {
      SCOPED_TRACE(testing::Message() << method << ", pattern " << pattern);
      auto config = overlapping(method);
      config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
      config.final_sync = true;
      config.take_replicas(1);
      LoneReplica replica(config, FragmentLayout({{0, 16}, {16, 16}}, 16));
      begin_at_zero(replica);
      replica.exchange.includes = [&](ChunkId k, protocol::Round round) {
        return round > 3 || ((pattern >> (2 * (round - 1) + k)) & 1) != 0;
      };
      for (int step = 1; step <= 20; ++step) replica.step(0.25F * static_cast<float>(step));
      replica.loop->finish();
      for (const std::size_t i : {0, 16}) ASSERT_EQ(replica.loop->global_parameters()[i], 0.25F * 210);
    }
  }
}

TEST(WholeRound, ALateResultFreezesTheClockWhereItIsDue) {
  for (const auto* method : {"co2", "eager"}) {
    auto config = overlapping(method);
    config.num_fragments = 1;
    config.take_replicas(1);
    LoneReplica replica(config, FragmentLayout({{0, 16}}, 16));
    bool connected = true;
    replica.exchange.commits = [&](FragmentId, protocol::Round) { return connected; };
    for (int i = 0; i < 7; ++i) replica.step(0.5F);
    connected = false;
    for (int i = 0; i < 3; ++i) replica.step(0.5F);
    EXPECT_EQ(replica.loop->step(), 8U) << "round 1 is due where round 2 is sent";
    EXPECT_TRUE(replica.loop->frozen());
    EXPECT_THAT(replica.exchange.rounds_of(0), testing::ElementsAre(1, 2));
    connected = true;
    const auto saved = replica.loop->save();
    ASSERT_TRUE(saved) << "both results are available now";
    LoneReplica resumed(config, replica.layout);
    resumed.local.values = replica.local.values;
    resumed.loop->restore(*saved);
    for (auto* one : {&replica, &resumed}) {
      for (int i = 0; i < 4; ++i) one->step(0.5F);
      EXPECT_EQ(one->loop->step(), 12U);
    }
    EXPECT_EQ(resumed.loop->global_hash().hex(), replica.loop->global_hash().hex());
    EXPECT_EQ(resumed.local.values, replica.local.values);
    EXPECT_EQ(replica.loop->fragments()[0].round, 2U);
  }
}

TEST(WholeRound, StoppedAfterAnyStepTheRunEndsTheSame) {
  for (const auto* method : {"co2", "eager"}) {
    auto config = overlapping(method);
    config.codec = "int4";
    config.error_feedback = true;
    config.warmup_steps = 2;
    config.momentum_clip = 0.5;
    config.final_sync = true;
    Replicas whole(config, layout_of(2), replica_count, random_step);
    whole.train(18);
    whole.finish();
    const auto expected = whole.global_hash().hex();
    for (std::uint64_t stop = 0; stop <= 18; ++stop) {
      SCOPED_TRACE(std::string(method) + ", stopped after step " + std::to_string(stop));
      Replicas first(config, layout_of(2), replica_count, random_step);
      first.train(stop);
      Replicas second(config, layout_of(2), random_step, first.save());
      second.train(18);
      second.finish();
      second.expect_agreement();
      ASSERT_EQ(second.global_hash().hex(), expected);
      for (std::size_t m = 0; m < replica_count; ++m) {
        const auto global = second.at(m).loop.global_parameters();
        ASSERT_EQ(second.at(m).local.values, Values(global.begin(), global.end())) << "after the final sync";
      }
    }
  }
}

// A replica that copies the state during the run receives the others' rounds from then on.
class JoinsInMidRun : public testing::TestWithParam<const char*> {
 protected:
  JoinsInMidRun() : config(overlapping(GetParam())) {
    config.codec = "int4";
    config.error_feedback = true;
    config.warmup_steps = 2;
    config.final_sync = true;
    config.resolve();
    reference = std::make_unique<LoneReplica>(config, layout_of(2));
    late = std::make_unique<LoneReplica>(config, layout_of(2));
    std::ranges::fill(late->local.values, 7.0F);
  }
  void train(std::uint64_t last) {
    while (reference->loop->step() < last)
      reference->step(0.01F * static_cast<float>(reference->loop->step()));
  }
  void take_state() {
    for (FragmentId p = 0; p < 2; ++p) late->loop->install(reference->exchange.source(p, false));
  }
  void expect_agreement() {
    ASSERT_EQ(late->loop->global_hash().hex(), reference->loop->global_hash().hex());
    ASSERT_EQ(late->loop->fragments(), reference->loop->fragments());
    ASSERT_EQ(late->loop->step(), reference->loop->step());
    ASSERT_EQ(late->loop->frozen(), reference->loop->frozen());
  }
  void train_both(std::uint64_t last) {
    while (reference->loop->step() < last) {
      train(reference->loop->step() + 1);
      late->exchange.results = reference->exchange.results;
      late->step(0.3F);
      ASSERT_NO_FATAL_FAILURE(expect_agreement()) << "after step " << reference->loop->step();
    }
    reference->loop->finish();
    late->exchange.results = reference->exchange.results;
    late->loop->finish();
    expect_agreement();
    const auto global = late->loop->global_parameters();
    EXPECT_EQ(late->local.values, Values(global.begin(), global.end())) << "after the final sync";
  }
  /// Fails the test unless all contributions are zeros with weight zero.
  void expect_nothing_sent() {
    for (const auto& [chunk, round, weight, bytes, samples] : late->exchange.contributions) {
      EXPECT_EQ(weight, 0U);
      EXPECT_TRUE(samples.empty());
      Values values(late->layout.chunk(chunk).size, 1.0F);
      ASSERT_TRUE(quant::decode(config.codec_spec(), *bytes, values));
      EXPECT_THAT(values, testing::Each(0.0F)) << "chunk " << chunk << " of round " << round;
    }
  }
  OuterConfig config;
  std::unique_ptr<LoneReplica> reference, late;
};

TEST_P(JoinsInMidRun, ItEndsWhereTheOthersEnd) {
  for (std::uint64_t begin = 3; begin <= 16; ++begin) {
    SCOPED_TRACE("joins at step " + std::to_string(begin));
    reference = std::make_unique<LoneReplica>(config, layout_of(2));
    late = std::make_unique<LoneReplica>(config, layout_of(2));
    train(begin - 1);
    take_state();
    train(begin);
    for (FragmentId p = 0; p < 2; ++p) {
      while (late->loop->fragments()[p].round < reference->loop->fragments()[p].round)
        late->loop->follow(p, reference->exchange.results.at({p, late->loop->fragments()[p].round + 1}));
    }
    late->loop->begin_at(begin);
    expect_nothing_sent();
    for (FragmentId p = 0; p < 2; ++p) {
      const auto theirs = reference->exchange.rounds_of(p);
      const bool any = theirs.back() > static_cast<protocol::Round>(config.warmup_steps);
      EXPECT_EQ(late->exchange.rounds_of(p).size(), any ? 1U : 0U) << "one round is in flight between sends";
    }
    const auto global = late->loop->global_parameters();
    EXPECT_EQ(late->local.values, Values(global.begin(), global.end()));
    ASSERT_NO_FATAL_FAILURE(train_both(30));
  }
}

TEST_P(JoinsInMidRun, WhereTheOthersAreFrozenTwoRoundsAreInFlight) {
  train(9);
  bool connected = false;
  reference->exchange.commits = [&](FragmentId, protocol::Round) { return connected; };
  train(10);
  ASSERT_TRUE(reference->loop->frozen()) << "fragment 0 was sent at steps 6 and 10";
  take_state();
  late->loop->begin_at(10);
  expect_agreement();
  expect_nothing_sent();
  const auto round = reference->loop->fragments()[0].round;
  EXPECT_THAT(late->exchange.rounds_of(0), testing::ElementsAre(round + 1, round + 2));
  connected = true;
  train_both(30);
}

TEST_P(JoinsInMidRun, ARoundOfTheOthersMayBeOnItsWay) {
  train(9);
  take_state();
  train(10);  // this step applies a round of fragment 0
  late->exchange.results = reference->exchange.results;
  late->loop->begin_at(10);
  expect_nothing_sent();
  EXPECT_TRUE(late->loop->frozen()) << "the result is due, and the next step applies it";
  train_both(30);
}

TEST_P(JoinsInMidRun, AStepThatTheRoundsAreNotOfIsRefused) {
  train(20);
  take_state();
  for (const std::uint64_t step : {1U, 2U, 8U, 60U})
    EXPECT_THROW(late->loop->begin_at(step), Error) << "step " << step;
  EXPECT_NO_THROW(late->loop->begin_at(20));
}

INSTANTIATE_TEST_SUITE_P(WholeRound, JoinsInMidRun, testing::Values("co2", "eager"));

// A replica was cut off and stood still while the others continued. When it is back, the sum includes what it
// had sent and what it trained since. (Steps made while a result is late are given up when it arrives, as
// with alpha = 0.)
TEST(WholeRound, WhoComesBackLosesNothing) {
  for (const auto* method : {"co2", "eager"}) {
    SCOPED_TRACE(method);
    auto config = overlapping(method);
    config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
    config.final_sync = true;
    config.take_replicas(1);
    LoneReplica replica(config, FragmentLayout({{0, 16}, {16, 16}}, 16));
    begin_at_zero(replica);
    bool connected = true;
    replica.exchange.commits = [&](FragmentId, protocol::Round) { return connected; };
    // The others make rounds 1 to 3 of fragment 0, and rounds 2 and 3 of fragment 1.
    replica.exchange.includes = [](ChunkId k, protocol::Round round) { return round < 1 + k || round > 3; };
    for (int i = 0; i < 7; ++i) replica.step(1);
    connected = false;
    replica.step(1);
    ASSERT_TRUE(replica.loop->frozen()) << "fragment 0 has sent its second round while the first is due";
    connected = true;
    replica.exchange.others_at = 17;
    replica.step(0);
    EXPECT_EQ(replica.loop->step(), 18U);
    EXPECT_FALSE(replica.loop->frozen());
    EXPECT_THAT(replica.exchange.rounds_of(0), testing::ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(replica.exchange.rounds_of(1), testing::ElementsAre(1, 2, 3, 4, 5))
        << "the last round is sent on time";
    EXPECT_EQ(replica.loop->stats().left_out, 5U);
    const auto& live =
        *std::ranges::find(replica.exchange.contributions, 4U, &ScriptedExchange::Contribution::round);
    EXPECT_EQ(live.weight, 4U) << "tokens of the steps in this contribution";
    for (int i = 0; i < 8; ++i) replica.step(1);
    replica.loop->finish();
    for (const std::size_t i : {0, 16}) EXPECT_EQ(replica.loop->global_parameters()[i], 8 + 8) << i;
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
