// save() and restore(): a run that was stopped at any point ends like an uninterrupted one.

#include <gmock/gmock.h>

#include <cstring>

#include "isthmus/base/error.h"
#include "replicas.h"

namespace isthmus::outer_sync {
namespace {

constexpr std::uint64_t last_step = 16;
constexpr std::size_t members = 3;

/// Two warm-up steps; then mostly three rounds in flight.
OuterConfig checkpointed(const std::string& codec, bool error_feedback) {
  auto config = config_of(3, 6, 5, 0.5);
  config.codec = codec;
  config.error_feedback = error_feedback;
  config.warmup_steps = 2;
  config.warmup_codec = codec;
  return config;
}

class Checkpoint : public testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Checkpoint, StoppedAfterAnyStepTheRunEndsTheSame) {
  const auto config = checkpointed(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Replicas whole(config, layout_of(3), members, random_step);
  whole.train(last_step);
  whole.finish();
  const auto expected = whole.global_hash().hex();
  const auto chain = whole.at(0).loop.fragments();
  for (std::uint64_t stop = 0; stop <= last_step; ++stop) {
    SCOPED_TRACE("stopped after step " + std::to_string(stop));
    Replicas first(config, layout_of(3), members, random_step);
    first.train(stop);
    Replicas second(config, layout_of(3), random_step, first.save());
    EXPECT_EQ(second.at(0).loop.step(), stop);
    EXPECT_EQ(second.global_hash(), first.global_hash());
    second.train(last_step);
    second.finish();
    second.expect_agreement();
    EXPECT_EQ(second.global_hash().hex(), expected);
    EXPECT_EQ(second.at(0).loop.fragments(), chain);
    for (std::size_t m = 0; m < members; ++m) EXPECT_EQ(second.at(m).local.values, whole.at(m).local.values);
  }
}

INSTANTIATE_TEST_SUITE_P(OuterLoop, Checkpoint,
                         testing::Combine(testing::Values("fp32", "int4"), testing::Bool()));

TEST(OuterLoopState, SavingDisturbsNothing) {
  const auto config = checkpointed("int4", true);
  Replicas whole(config, layout_of(3), members, random_step);
  Replicas saved(config, layout_of(3), members, random_step);
  for (std::uint64_t step = 1; step <= last_step; ++step) {
    whole.train(step);
    saved.train(step);
    EXPECT_EQ(saved.save()[0].outer, saved.save()[0].outer) << "saving twice gives the same bytes";
  }
  EXPECT_EQ(saved.global_hash().hex(), whole.global_hash().hex());
}

TEST(OuterLoopState, TheAgreedPartIsTheSameOnAllReplicas) {
  const auto config = checkpointed("int4", true);
  Replicas run(config, layout_of(3), members, random_step);
  for (std::uint64_t step = 1; step <= last_step; ++step) {
    run.train(step);
    const auto states = run.save();
    for (std::size_t m = 1; m < members; ++m) {
      EXPECT_EQ(states[m].outer.agreed, states[0].outer.agreed) << "replica " << m << ", step " << step;
      EXPECT_NE(states[m].outer.own, states[0].outer.own);
    }
  }
}

TEST(OuterLoopState, AResumedRunCanBeSavedAgain) {
  const auto config = checkpointed("int4", true);
  Replicas first(config, layout_of(3), members, random_step);
  first.train(9);
  const auto states = first.save();
  Replicas second(config, layout_of(3), random_step, states);
  EXPECT_EQ(second.save()[1].outer, states[1].outer);
}

// ---- invalid states ----

/// One replica and a saved state of it with rounds in flight.
class RefusedState : public testing::Test {
 protected:
  RefusedState() : config(checkpointed("int4", true)) {
    Replicas run(config, layout_of(3), 1, random_step);
    run.train(9);
    const auto saved = run.save()[0].outer;
    agreed = saved.agreed.size();
    state = saved.agreed;
    state.insert(state.end(), saved.own.begin(), saved.own.end());
  }
  /// Restores into a fresh loop. Returns what was wrong with the state, or "accepted". A rejected state must
  /// change nothing.
  std::string restored(std::span<const std::byte> bytes, const OuterConfig& settings, FragmentId fragments) {
    Replicas fresh(settings, layout_of(fragments), 1, random_step);
    auto& loop = fresh.at(0).loop;
    const auto before = loop.global_hash();
    try {
      loop.restore(bytes.first(std::min(agreed, bytes.size())),
                   bytes.subspan(std::min(agreed, bytes.size())));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr("checkpoint"));
      EXPECT_EQ(loop.step(), 0U) << "a rejected state must change nothing";
      EXPECT_EQ(loop.global_hash(), before);
      EXPECT_EQ(loop.fragments()[0].round, 0U);
      return error.what();
    }
    return "accepted";
  }
  std::string restored(std::span<const std::byte> bytes) { return restored(bytes, config, 3); }

  OuterConfig config;
  std::size_t agreed = 0;  ///< bytes of the agreed part
  Bytes state;             ///< the agreed part followed by this replica's own part
};

TEST_F(RefusedState, TheStateItselfIsFine) { EXPECT_EQ(restored(state), "accepted"); }

TEST_F(RefusedState, CutShortAnywhere) {
  for (std::size_t length = 0; length < state.size(); ++length)
    ASSERT_NE(restored(std::span(state).first(length)), "accepted")
        << length << " of " << state.size() << " bytes";
  state.push_back(std::byte{0});
  EXPECT_NE(restored(state), "accepted") << "one byte too many";
}

TEST_F(RefusedState, OfAnotherLayout) {
  EXPECT_THAT(restored(state, checkpointed("int4", true), 2), testing::HasSubstr("a different layout"));
  auto other = config;
  other.chunk_elements = 32;
  Replicas fresh(other, FragmentLayout({{0, 40}, {50, 41}, {100, 42}}, 32), 1, random_step);
  EXPECT_THROW(fresh.at(0).loop.restore(std::span(state).first(agreed), std::span(state).subspan(agreed)),
               Error)
      << "different chunks";
}

TEST_F(RefusedState, OfOtherSettings) {
  EXPECT_NE(restored(state, checkpointed("int4", false), 3), "accepted") << "without error feedback";
  for (const auto* codec : {"int8", "4bit"}) {  // 4bit's results have the same size
    EXPECT_THAT(restored(state, checkpointed(codec, true), 3), testing::HasSubstr("of another codec"))
        << codec;
  }
  auto longer = config;
  longer.warmup_steps = 20;
  EXPECT_NE(restored(state, longer, 3), "accepted") << "a longer warm-up";
}

TEST_F(RefusedState, Garbage) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Bytes bytes(random_bits(3, seed, 0) % 4000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random_bits(4, seed, i));
    ASSERT_NE(restored(bytes), "accepted") << "seed " << seed;
  }
}

// A damaged number cannot be noticed here (the checkpoint's checksum does that), but it must not break the
// loop.
TEST_F(RefusedState, DamagedAnywhereItIsRefusedOrHarmless) {
  for (std::size_t at = 0; at < state.size(); ++at) {
    for (const auto flip : {0x01, 0x80, 0xff}) {
      auto bytes = state;
      bytes[at] ^= static_cast<std::byte>(flip);
      static_cast<void>(restored(bytes));
    }
  }
}

TEST_F(RefusedState, RoundsInFlightThatCannotBe) {
  // The state begins with the step, then round and chain of three fragments, then the round of the first
  // round in flight, which must follow the fragment's last applied round.
  std::uint64_t round = 0;
  constexpr std::size_t first_fragment = 8 + 4;
  std::memcpy(&round, state.data() + first_fragment, 8);
  ASSERT_EQ(round, 2U) << "the layout of the saved state has changed; adapt this test";
  round = 7;
  std::memcpy(state.data() + first_fragment, &round, 8);
  EXPECT_THAT(restored(state), testing::HasSubstr("in flight"));
}

}  // namespace
}  // namespace isthmus::outer_sync
