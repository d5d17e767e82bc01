// Compares the outer state in a device's memory with the host's, bit for bit.

#include "isthmus/outer_sync/engine/outer_state.h"

#include <gmock/gmock.h>

#include <cmath>
#include <future>
#include <thread>

#include "emulated_device.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Round;
using testing::HasSubstr;

/// Two fragments of 3 and 40 chunks; the last ones are short.
const FragmentLayout chunks_of_64({{0, 160}, {192, 2500}}, 64);
/// Batches of four chunks, two of them under way at a time.
constexpr Staging small_staging{.batch_elements = 300, .outgoing = 1, .incoming = 1};

OuterConfig config_in(const std::string& codec, bool error_feedback, bool carry = false) {
  auto config = config_of(2, 4, 1, carry ? std::nullopt : std::optional(0.5));
  config.codec = codec;
  config.codec_block = 0;
  config.chunk_elements = 64;
  config.error_feedback = error_feedback;
  config.warmup_steps = 2;
  return config;
}

/// Owns the parameters that the state sees, so that they outlive it.
struct OwnParameters {
  std::unique_ptr<EmulatedParameters> parameters;
};

/// A replica with its outer state on the emulated device.
class OnDevice final : private OwnParameters, public LoneReplica {
 public:
  OnDevice(const OuterConfig& its_config, quant::EmulatedPasses& kernels,
           const FragmentLayout& layout = chunks_of_64, const Staging& staging = small_staging)
      : LoneReplica(its_config, layout, [&](LoneReplica& replica) {
          parameters = std::make_unique<EmulatedParameters>(replica.local);
          return std::make_unique<OuterState>(replica.layout, codec_plan(replica.config), *parameters,
                                              std::make_unique<EmulatedDevice>(kernels), staging);
        }) {}
};

class DeviceState : public testing::Test {
 protected:
  quant::EmulatedPasses kernels{false};
};

std::function<float(std::uint64_t)> moves(int step) {
  return
      [step](std::uint64_t i) { return 0.1F * (random_unit(5, static_cast<std::uint64_t>(step), i) - 0.5F); };
}

void expect_same(LoneReplica& device, LoneReplica& host) {
  ASSERT_TRUE(device.exchange.has(host.exchange.contributions.size()));
  ASSERT_EQ(device.exchange.contributions.size(), host.exchange.contributions.size());
  for (std::size_t i = 0; i < host.exchange.contributions.size(); ++i) {
    ASSERT_EQ(*device.exchange.contributions[i].bytes, *host.exchange.contributions[i].bytes)
        << "contribution " << i;
  }
  ASSERT_EQ(device.loop->global_hash().hex(), host.loop->global_hash().hex());
  ASSERT_EQ(device.loop->fragments(), host.loop->fragments());
  ASSERT_EQ(device.local.values, host.local.values);
}

/// The codec of a case of GivesTheHostsBits and its rounding.
struct Case {
  const char* codec;
  std::uint64_t chunk;  ///< elements; blocks and groups of 128 only pass chunk boundaries where chunks are
                        ///< multiples of 128
  const char* rounding = "nearest";
};

TEST_F(DeviceState, GivesTheHostsBits) {
  for (const auto& [codec, chunk, rounding] :
       {Case{"fp32", 64}, Case{"4bit", 64}, Case{"int8", 64}, Case{"2bit", 64}, Case{"int8", 128},
        Case{"3bit", 128}, Case{"2bit", 128, "stochastic"}, Case{"sign", 128}, Case{"topk", 4096}}) {
    const FragmentLayout layout({{0, 5 * chunk / 2}, {3 * chunk, 10 * chunk + 20}}, chunk);
    // The last chunk fits into a batch with four others if that batch begins after a chunk that is left out.
    const Staging staging{.batch_elements = 4 * chunk + chunk / 2, .outgoing = 1, .incoming = 1};
    for (const auto& [error_feedback, carry] :
         {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      SCOPED_TRACE(std::string(codec) + " in chunks of " + std::to_string(chunk) +
                   (error_feedback ? " with error feedback" : "") + (carry ? ", carry" : ""));
      auto config = config_in(codec, error_feedback, carry);
      config.chunk_elements = static_cast<std::int64_t>(chunk);
      config.codec_rounding = rounding;
      OnDevice device(config, kernels, layout, staging);
      LoneReplica host(config, layout);
      for (LoneReplica* replica : {static_cast<LoneReplica*>(&device), &host}) {
        // Leave out a chunk now and then, to exercise everything the state can do.
        replica->exchange.includes = [](ChunkId k, Round round) { return (k + round) % 7 != 0; };
      }
      for (int step = 1; step <= 15; ++step) {
        SCOPED_TRACE(testing::Message() << "step " << step);
        device.step(moves(step));
        host.step(moves(step));
        ASSERT_NO_FATAL_FAILURE(expect_same(device, host));
      }
      device.loop->finish();
      host.loop->finish();
      expect_same(device, host);
      EXPECT_GT(host.loop->stats().left_out, 0U);
    }
  }
}

TEST_F(DeviceState, FiguresAreTheHosts) {
  for (const bool carry : {false, true}) {
    auto config = config_in("4bit", false, carry);
    config.sync_every = 2;
    OnDevice device(config, kernels);
    LoneReplica host(config, chunks_of_64);
    for (int step = 1; step <= 40; ++step) {
      device.step(moves(step));
      host.step(moves(step));
    }
    EXPECT_EQ(device.loop->figures(), host.loop->figures());
    EXPECT_TRUE(host.loop->figures().at(1).step);
    EXPECT_GT(host.loop->figures().at(1).spread_at_send, 0);
  }
}

TEST_F(DeviceState, CheckpointsAreTheHosts) {
  for (const auto& [error_feedback, carry] :
       {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    const auto config = config_in("4bit", error_feedback, carry);
    OnDevice device(config, kernels);
    LoneReplica host(config, chunks_of_64);
    for (int step = 1; step <= 9; ++step) {
      device.step(moves(step));
      host.step(moves(step));
    }
    const auto saved = device.loop->save();
    ASSERT_TRUE(saved);
    EXPECT_EQ(*saved, *host.loop->save());
    // Each continues from the other's saved state.
    OnDevice next(config, kernels);
    next.local.values = host.local.values;
    next.loop->restore(*saved);
    for (int step = 10; step <= 20; ++step) {
      next.step(moves(step));
      host.step(moves(step));
    }
    EXPECT_EQ(next.loop->global_hash().hex(), host.loop->global_hash().hex());
    EXPECT_EQ(next.local.values, host.local.values);
  }
}

TEST_F(DeviceState, ANewcomerBeginsAsOnTheHost) {
  const auto config = config_in("4bit", true);
  OnDevice donor(config, kernels), joiner(config, kernels);
  for (int step = 1; step <= 12; ++step) donor.step(moves(step));
  for (int step = 1; step <= 3; ++step) joiner.step(moves(100 + step));
  joiner.exchange.chains = {};
  const auto size = chunks_of_64.buffer_size();
  PlainMoments given(size, 0.5F, 0.25F, 90), taken(size, 0, 0, 0);
  donor.loop->share_moments(given);
  joiner.loop->share_moments(taken);
  for (FragmentId p = 0; p < 2; ++p) joiner.loop->install(donor.exchange.source(p, true));
  joiner.loop->begin_at(12);
  for (const auto& fragment : chunks_of_64.fragments()) {
    EXPECT_EQ(taken.first[fragment.begin], 0.5F);
    EXPECT_EQ(taken.second[fragment.end() - 1], 0.25F);
  }
  EXPECT_EQ(taken.count, 90U);
  EXPECT_EQ(joiner.loop->global_hash().hex(), donor.loop->global_hash().hex());
  const auto global = joiner.loop->global_parameters();
  EXPECT_EQ(joiner.local.values, std::vector<float>(global.begin(), global.end()));
}

TEST_F(DeviceState, WhatItChangesReachesTheModel) {
  PlainParameters plain(initial_parameters(chunks_of_64));
  EmulatedParameters parameters(plain);
  const auto codec = config_in("fp32", false).codec_spec();
  OuterState state(chunks_of_64, codec_plan(config_in("fp32", false)), parameters,
                   std::make_unique<EmulatedDevice>(kernels));
  std::vector<protocol::SharedBytes> zeros;
  for (const std::size_t size : {64, 64, 32})
    zeros.push_back(std::make_shared<const Bytes>(size * sizeof(float), std::byte{0}));
  EXPECT_FALSE(state.apply(0, codec, zeros, {}));
  EXPECT_THAT(parameters.refreshed, testing::ElementsAre(chunks_of_64.fragment(0)));
  auto odd = zeros;
  odd[1] = std::make_shared<const Bytes>();
  EXPECT_TRUE(state.products(0, codec, zeros));
  EXPECT_FALSE(state.products(0, codec, odd));
  zeros[1] = nullptr;
  state.shift_local(0, codec, {{zeros, -0.5F}});
  EXPECT_THAT(parameters.refreshed, testing::ElementsAre(chunks_of_64.fragment(0), chunks_of_64.fragment(0)));
  state.begin_from_global();
  EXPECT_EQ(parameters.refreshed.back(), (Range{0, chunks_of_64.buffer_size()}));
}

TEST_F(DeviceState, ValuesThatAreNotFiniteAreNamed) {
  auto config = config_in("4bit", false);
  config.warmup_steps = 0;
  // The bad value is found by the training thread, by the hand-over thread, and in the last batch.
  for (const auto& [staging, bad] :
       {std::pair(small_staging, 70), std::pair(Staging(), 70), std::pair(small_staging, 2470)}) {
    OnDevice device(config, kernels, chunks_of_64, staging);
    device.step(0.5F);
    try {
      device.step([bad = bad](std::uint64_t i) {
        return i == 192 + static_cast<std::uint64_t>(bad) ? INFINITY : 0.5F;
      });
      device.step(0.5F);  // it must be found here at the latest
      ADD_FAILURE() << "an infinite outer gradient must end the run";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("at element " + std::to_string(bad) + " of fragment 1 at step 2"));
    }
  }
}

TEST_F(DeviceState, TrainingGoesOnWhileChunksAreHandedOver) {
  auto config = config_in("4bit", false);
  config.warmup_steps = 0;
  std::promise<void> step_made;
  const auto made = step_made.get_future().share();
  OnDevice device(config, kernels, chunks_of_64, Staging());
  LoneReplica host(config, chunks_of_64);
  device.exchange.before_contribute = [&] { made.wait_for(std::chrono::seconds(10)); };
  // Fragment 1 is sent at step 2, and its result is due at step 3.
  for (int step = 1; step <= 2; ++step) device.step(moves(step));
  EXPECT_FALSE(device.exchange.has(1, std::chrono::milliseconds(0)));
  step_made.set_value();
  for (int step = 3; step <= 9; ++step) device.step(moves(step));
  for (int step = 1; step <= 9; ++step) host.step(moves(step));
  EXPECT_EQ(host.exchange.rounds_of(1).front(), 1U);
  expect_same(device, host);
}

TEST_F(DeviceState, AFailureIsKnownLongBeforeTheResultIsDue) {
  auto config = config_in("4bit", false);
  config.warmup_steps = 0;
  config.sync_every = 40;
  config.sync_delay = 30;
  OnDevice device(config, kernels, chunks_of_64, Staging());
  device.exchange.before_contribute = [] { throw Error(ErrorKind::data, "nothing can be handed in"); };
  // Fragment 1 is sent at step 20; its result is due at step 50.
  for (int step = 1; step <= 20; ++step) ASSERT_NO_THROW(device.step(moves(step)));
  EXPECT_THROW(
      while (device.loop->step() < 40) {
        device.step(moves(21));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      },
      Error);
}

TEST_F(DeviceState, WhoTakesTheStateOfOthersHasHandedOverEverything) {
  auto config = config_in("4bit", false);
  config.warmup_steps = 0;
  OnDevice device(config, kernels, chunks_of_64, Staging());
  device.exchange.before_contribute = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (int step = 1; step <= 2; ++step) device.step(moves(step));
  device.loop->finish_hand_overs();
  const auto all = device.exchange.contributions.size();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(device.exchange.contributions.size(), all);
  EXPECT_GT(all, 0U);
}

TEST_F(DeviceState, AReplicaThatEndsHasHandedOverEverything) {
  OnDevice device(config_in("4bit", false), kernels);
  LoneReplica host(device.config, chunks_of_64);
  device.exchange.before_contribute = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (LoneReplica* replica : {static_cast<LoneReplica*>(&device), &host}) {
    for (int step = 1; step <= 4; ++step) replica->step(moves(step));
    replica->loop = nullptr;
  }
  EXPECT_EQ(device.exchange.contributions.size(), host.exchange.contributions.size());
}

TEST_F(DeviceState, BytesThatDoNotDecodeNeverReachTheDevice) {
  OnDevice device(config_in("4bit", false), kernels);
  for (int step = 1; step <= 4; ++step) device.step(moves(step));
  auto& chunks = device.exchange.results[{1, 3}];
  const auto count = chunks_of_64.chunks_of(1).size();
  chunks.assign(count, std::make_shared<const Bytes>(
                           quant::encoded_size(config_in("4bit", false).codec_spec(), 64), std::byte{0xff}));
  try {
    device.step(moves(5));
    FAIL() << "scales of all one bits must be rejected";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the result of chunk 3 in round 3 does not decode"));
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
