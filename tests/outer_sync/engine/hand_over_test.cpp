// A device's outer state and the thread that hands over its chunks, with a device that computes at once. This
// test runs under ThreadSanitizer; the emulated GPU (device_outer_state_test.cpp) does not.

#include <gtest/gtest.h>

#include "device_parameters.h"
#include "engine/host_passes.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "scripted_exchange.h"

namespace isthmus::outer_sync {
namespace {

/// The passes in host memory, which pass for a device's. Counts the bytes taken.
class ImmediateDevice final : public HostPasses {
 public:
  std::size_t on_device = 0, on_host = 0;

  std::shared_ptr<std::byte> device_memory(std::size_t bytes) override {
    on_device += bytes;
    return HostPasses::device_memory(bytes);
  }
  std::shared_ptr<std::byte> host_memory(std::size_t bytes) override {
    on_host += bytes;
    return HostPasses::host_memory(bytes);
  }
};

const FragmentLayout layout({{0, 160}, {192, 2500}}, 64);

OuterConfig four_bits() {
  auto config = config_of(2, 4, 1, std::nullopt);
  config.codec = "4bit";
  config.codec_block = 0;
  config.chunk_elements = 64;
  return config;
}

/// First the other thread encodes a whole fragment; then the training thread encodes most of it, since only
/// two batches fit.
const Staging stagings[] = {Staging(), Staging{.batch_elements = 4 * 64 + 32, .outgoing = 1, .incoming = 1}};

/// The same replica on a device and on the host.
class DeviceAndHost {
 public:
  DeviceAndHost(const OuterConfig& config, const Staging& staging)
      : device(config, layout,
               [&](LoneReplica& replica) {
                 parameters_ = std::make_unique<EmulatedParameters>(replica.local);
                 return std::make_unique<OuterState>(replica.layout, codec_plan(replica.config), *parameters_,
                                                     std::make_unique<ImmediateDevice>(), staging);
               }),
        host(config, layout) {
    for (auto* replica : {&device, &host})
      replica->exchange.includes = [](ChunkId k, protocol::Round round) { return (k + round) % 7 != 0; };
  }
  static float move(std::uint64_t stream, int step, std::uint64_t i) {
    return 0.1F * (random_unit(stream, static_cast<std::uint64_t>(step), i) - 0.5F);
  }
  void step(int number) {
    for (auto* replica : {&device, &host})
      replica->step([number](std::uint64_t i) { return move(5, number, i); });
  }
  void expect_equal_ends() {
    device.loop->finish();
    host.loop->finish();
    EXPECT_EQ(device.loop->global_hash().hex(), host.loop->global_hash().hex());
    EXPECT_EQ(device.local.values, host.local.values);
    EXPECT_EQ(device.exchange.contributions.size(), host.exchange.contributions.size());
  }

 private:
  std::unique_ptr<EmulatedParameters> parameters_;

 public:
  LoneReplica device, host;
};

TEST(HandOver, GivesTheBitsOfOneThread) {
  for (const auto& staging : stagings) {
    DeviceAndHost both(four_bits(), staging);
    for (int step = 1; step <= 40; ++step) both.step(step);
    both.expect_equal_ends();
  }
}

// Some exchanges get the partner's part, and others end while their chunks may still be handed over.
TEST(HandOver, GivesTheBitsOfOneThreadInExchangesToo) {
  auto config = four_bits();
  config.sync_every = 12;
  config.gossip_every = 3;
  config.reject = 6;
  for (const auto& staging : stagings) {
    DeviceAndHost both(config, staging);
    LoneReplica partner(config, layout);
    for (auto* replica : {&both.device, &both.host, &partner})
      replica->exchange.has_partner = [](FragmentId, std::uint64_t) { return true; };
    for (int step = 1; step <= 80; ++step) {
      both.step(step);
      partner.step([step](std::uint64_t i) { return DeviceAndHost::move(6, step, i); });
      if (step % 24 < 12)
        both.device.exchange.of_partner = both.host.exchange.of_partner = partner.exchange.exchanged;
    }
    both.expect_equal_ends();
    const auto& stats = both.device.loop->gossip();
    EXPECT_GT(stats.averaged, 5U);
    EXPECT_GT(stats.missed, 5U);
    EXPECT_EQ(stats.averaged, both.host.loop->gossip().averaged);
    EXPECT_EQ(stats.refused, 0U);
  }
}

TEST(HandOver, TakesTheMemoryThatIsPlanned) {
  for (const auto& name : {"fp32", "4bit", "topk"}) {
    for (const std::uint64_t chunk : {4096, 65536, 1 << 21}) {
      auto config = four_bits();
      config.codec = name;
      const FragmentLayout large({{0, 3'000'000}, {3'000'000, 1'000'000}}, chunk);
      PlainParameters plain(std::vector<float>(large.buffer_size()));
      EmulatedParameters parameters(plain);
      auto device = std::make_unique<ImmediateDevice>();
      const auto& taken = *device;
      const auto plan = codec_plan(config);
      const OuterState state(large, plan, parameters, std::move(device));
      const StagingRoom room(large, plan.codec);
      EXPECT_EQ(taken.on_device, 2 * sizeof(float) * large.buffer_size() + room.on_device()) << name << chunk;
      EXPECT_EQ(taken.on_host, room.on_host()) << name << chunk;
    }
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
