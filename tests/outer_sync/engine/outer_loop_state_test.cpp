// The outer loop of a replica that copies the state from another: snapshots, the rounds after them, moments.

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Round;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Values = std::vector<float>;

std::string failure_of(const std::function<void()>& work, ErrorKind kind) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

/// A donor that trains by itself, and a joiner that gets its results.
class StateTransfer : public testing::Test {
 protected:
  StateTransfer() : config(streaming()), donor(config, layout_of(3)), joiner(config, layout_of(3)) {}
  static OuterConfig streaming() {
    auto config = config_of(3, 6, 2, 0.5);
    config.codec = "int4";
    config.error_feedback = true;
    config.warmup_steps = 2;
    return config;
  }
  void train_donor(std::uint64_t last) {
    while (donor.loop->step() < last) donor.step(0.01F * static_cast<float>(donor.loop->step()));
  }
  void install_all() {
    for (FragmentId p = 0; p < 3; ++p) joiner.loop->install(donor.exchange.source(p, false));
  }

  OuterConfig config;
  LoneReplica donor, joiner;
};

TEST_F(StateTransfer, ThereIsNoStateToGiveInTheWarmUp) {
  train_donor(1);
  EXPECT_FALSE(donor.exchange.source) << "the inner optimizer's state would be needed too";
  train_donor(2);
  EXPECT_TRUE(donor.exchange.source);
  EXPECT_EQ(donor.exchange.served, 2U) << "requests are served once per step";
  donor.loop.reset();
  EXPECT_FALSE(donor.exchange.source) << "a later request would find no loop";
}

TEST_F(StateTransfer, AfterASnapshotAndTheRoundsSinceItIsWhereTheOthersAre) {
  for (const std::uint64_t begin : {5U, 9U, 12U, 13U, 20U}) {
    SCOPED_TRACE("joins at step " + std::to_string(begin));
    LoneReplica late(config, layout_of(3));
    std::ranges::fill(late.local.values, 7.0F);
    std::vector<Round> applied;
    LoneReplica reference(config, layout_of(3));
    const auto train = [&](std::uint64_t last) {
      while (reference.loop->step() < last)
        reference.step(0.01F * static_cast<float>(reference.loop->step()));
    };
    train(begin - 2);
    for (FragmentId p = 0; p < 3; ++p) late.loop->install(reference.exchange.source(p, false));
    train(begin);
    for (FragmentId p = 0; p < 3; ++p) {
      while (late.loop->fragments()[p].round < reference.loop->fragments()[p].round)
        late.loop->follow(p, reference.exchange.results.at({p, late.loop->fragments()[p].round + 1}));
    }
    EXPECT_THAT(late.local.values, testing::Each(7.0F))
        << "following rounds may change the global parameters only";
    for (const auto& fragment : late.loop->fragments()) applied.push_back(fragment.round);
    late.loop->begin_at(begin);
    for (const auto& nothing : late.exchange.contributions)
      EXPECT_EQ(nothing.weight, 0U) << "it has nothing to contribute to rounds in flight";
    EXPECT_EQ(late.loop->global_hash().hex(), reference.loop->global_hash().hex());
    EXPECT_EQ(late.loop->fragments(), reference.loop->fragments());
    const auto global = late.loop->global_parameters();
    EXPECT_EQ(late.local.values, Values(global.begin(), global.end()));
    EXPECT_EQ(late.loop->step(), begin);
    // From here on, both get the reference's results and apply them at the same steps.
    while (reference.loop->step() < 40) {
      train(reference.loop->step() + 1);
      for (FragmentId p = 0; p < 3; ++p) {
        for (const auto& [key, chunks] : reference.exchange.results) late.exchange.results[key] = chunks;
      }
      late.step(0.3F);
      ASSERT_EQ(late.loop->global_hash().hex(), reference.loop->global_hash().hex())
          << "after step " << late.loop->step();
      ASSERT_EQ(late.loop->fragments(), reference.loop->fragments());
    }
    for (FragmentId p = 0; p < 3; ++p) {
      const auto theirs = reference.exchange.rounds_of(p), ours = late.exchange.rounds_of(p);
      ASSERT_FALSE(ours.empty());
      EXPECT_EQ(ours.back(), theirs.back());
      EXPECT_EQ(ours.size(), ours.back() - ours.front() + 1)
          << "it must contribute to every round since its first";
      EXPECT_EQ(ours.front(), applied[p] + 1) << "rounds in flight wait for the newcomer too";
    }
  }
}

TEST_F(StateTransfer, ASendPointOfARoundThatIsHereAlreadySendsNothing) {
  train_donor(14);
  install_all();
  const auto round = joiner.loop->fragments()[1].round;
  Schedule schedule(3, 6, 2, 2);
  const auto sent_at = schedule.send_step(1, round);
  joiner.loop->begin_at(sent_at - 1);
  joiner.exchange.results = donor.exchange.results;
  for (int i = 0; i < 4; ++i) joiner.step(0.5F);
  EXPECT_THAT(joiner.exchange.rounds_of(1), IsEmpty()) << "round " << round << " is applied already";
  while (joiner.exchange.rounds_of(1).empty() && joiner.loop->step() < 40) {
    train_donor(joiner.loop->step() + 1);
    joiner.exchange.results = donor.exchange.results;
    joiner.step(0.5F);
  }
  EXPECT_THAT(joiner.exchange.rounds_of(1), ElementsAre(round + 1));
}

TEST_F(StateTransfer, WhatWasInFlightBeforeIsForgotten) {
  for (int i = 0; i < 4; ++i) joiner.step(0.5F);  // fragment 1 is sent in the fourth step
  ASSERT_THAT(joiner.exchange.rounds_of(1), ElementsAre(1, 2, 3));
  joiner.exchange.chains = {};  // a new view: the exchange forgets too
  train_donor(11);
  install_all();
  joiner.loop->begin_at(11);
  EXPECT_EQ(joiner.loop->step(), 11U);
  EXPECT_EQ(joiner.loop->global_hash().hex(), donor.loop->global_hash().hex());
  EXPECT_EQ(joiner.loop->stats().left_out, 0U) << "its own step was given up, so nothing is put back";
}

TEST_F(StateTransfer, JoinedWhereTheOthersAreFrozenItIsFrozenToo) {
  train_donor(5);  // fragment 1 is sent at 4 and due at 6
  donor.exchange.commits = [](FragmentId, Round) { return false; };
  train_donor(6);
  ASSERT_TRUE(donor.loop->frozen());
  install_all();
  joiner.loop->begin_at(6);
  EXPECT_TRUE(joiner.loop->frozen());
}

TEST_F(StateTransfer, SnapshotsThatDoNotFitAreRefused) {
  train_donor(10);
  const auto good = donor.exchange.source(1, false);
  const auto refusal = [&](const std::function<void(FragmentSnapshot&)>& spoil) {
    auto bad = good;
    spoil(bad);
    const auto before = joiner.loop->global_hash();
    auto why = failure_of([&] { joiner.loop->install(bad); }, ErrorKind::network);
    EXPECT_EQ(joiner.loop->global_hash(), before) << "a rejected snapshot must change nothing";
    return why;
  };
  const auto other_size = std::make_shared<const AlignedVector<float>>(3, 0.0F);
  auto broken = *good.velocity;
  broken[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal([](auto& s) { s.fragment = 3; }),
              HasSubstr("fragment 3 is invalid: fragments of this run are numbered below 3"));
  EXPECT_THAT(refusal([&](auto& s) { s.theta = other_size; }), HasSubstr("has 3 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.velocity = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.velocity = std::make_shared<const AlignedVector<float>>(broken); }),
              HasSubstr("not finite"));
  EXPECT_THAT(refusal([](auto& s) { s.state.round = 1; }), HasSubstr("in the warm-up"));
}

TEST_F(StateTransfer, MomentsComeWithTheFragmentsWhereTheyAreAskedFor) {
  const auto size = donor.layout.buffer_size();
  PlainMoments given(size, 0.5F, 0.25F, 90), taken(size, 7, 7, 3);
  for (std::size_t i = 0; i < size; ++i) given.first[i] = static_cast<float>(i);
  train_donor(10);
  EXPECT_FALSE(donor.exchange.source(0, true).first_moment) << "the moments are not shared yet";
  donor.loop->share_moments(given);
  joiner.loop->share_moments(taken);
  EXPECT_FALSE(donor.exchange.source(0, false).first_moment) << "the moments were not asked for";
  for (FragmentId p = 0; p < 3; ++p) {
    const auto snapshot = donor.exchange.source(p, true);
    given.count -= p;  // as if each fragment came from another member
    joiner.loop->install(snapshot);
    EXPECT_EQ(taken.count, 3U) << "the count must not change before all fragments have arrived";
  }
  joiner.loop->begin_at(10);
  EXPECT_EQ(taken.count, 89U) << "the lowest count of the three";
  for (const auto& fragment : donor.layout.fragments()) {
    for (auto i = fragment.begin; i < fragment.end(); ++i) {
      ASSERT_EQ(taken.first[i], static_cast<float>(i));
      ASSERT_EQ(taken.second[i], 0.25F);
    }
  }
  // Copied once more without moments (by a newcomer that starts again), they stay unchanged.
  joiner.exchange.contributions.clear();
  install_all();
  joiner.loop->begin_at(10);
  EXPECT_EQ(taken.count, 89U);
}

TEST_F(StateTransfer, MomentsThatDoNotFitAreRefused) {
  const auto size = donor.layout.buffer_size();
  PlainMoments given(size, 0.5F, 0.25F, 90), taken(size, 7, 7, 3);
  donor.loop->share_moments(given);
  joiner.loop->share_moments(taken);
  train_donor(10);
  const auto good = donor.exchange.source(1, true);
  const auto refusal = [&](const std::function<void(FragmentSnapshot&)>& spoil) {
    auto bad = good;
    spoil(bad);
    auto why = failure_of([&] { joiner.loop->install(bad); }, ErrorKind::network);
    EXPECT_THAT(taken.first, testing::Each(7.0F)) << "a rejected snapshot must change nothing";
    return why;
  };
  const auto with = [&](float value) {
    return std::make_shared<const AlignedVector<float>>(good.theta->size(), value);
  };
  EXPECT_THAT(refusal([](auto& s) { s.second_moment = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([](auto& s) { s.first_moment = nullptr; }), HasSubstr("has 0 elements; expected 41"));
  EXPECT_THAT(refusal([&](auto& s) { s.first_moment = with(INFINITY); }), HasSubstr("not finite"));
  EXPECT_THAT(refusal([&](auto& s) { s.second_moment = with(-1); }), HasSubstr("negative"));
}

TEST_F(StateTransfer, ResultsThatDoNotFitAreRefused) {
  train_donor(20);
  auto results = donor.exchange.results.at({1, 3});
  const auto why = [&](FragmentId p, ErrorKind kind) {
    return failure_of([&] { joiner.loop->follow(p, results); }, kind);
  };
  EXPECT_THAT(why(3, ErrorKind::network), HasSubstr("does not fit this layout"));
  results.pop_back();
  EXPECT_THAT(why(1, ErrorKind::network), HasSubstr("with 2 chunks does not fit this layout"));
  results.push_back(std::make_shared<const Bytes>(3, std::byte{0}));
  install_all();
  EXPECT_THAT(why(1, ErrorKind::divergence), HasSubstr("does not decode"));
}

TEST_F(StateTransfer, AStepThatTheRoundsAreNotOfIsRefused) {
  train_donor(20);
  install_all();
  for (const std::uint64_t step : {0U, 1U, 2U, 8U, 60U, 100U}) {
    EXPECT_THAT(failure_of([&] { joiner.loop->begin_at(step); }, ErrorKind::network),
                HasSubstr("do not match step " + std::to_string(step)));
  }
  EXPECT_NO_THROW(joiner.loop->begin_at(20));
  EXPECT_THAT(failure_of([&] { joiner.loop->begin_at(std::numeric_limits<std::uint64_t>::max()); },
                         ErrorKind::network),
              HasSubstr("too old"));
}

}  // namespace
}  // namespace isthmus::outer_sync
