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

TEST(HandOver, GivesTheBitsOfOneThread) {
  // First the other thread encodes a whole fragment; then the training thread encodes most of it, since only
  // two batches fit.
  for (const Staging& staging :
       {Staging(), Staging{.batch_elements = 4 * 64 + 32, .outgoing = 1, .incoming = 1}}) {
    const auto config = four_bits();
    std::unique_ptr<EmulatedParameters> parameters;
    LoneReplica device(config, layout, [&](LoneReplica& replica) {
      parameters = std::make_unique<EmulatedParameters>(replica.local);
      return std::make_unique<OuterState>(replica.layout, codec_plan(replica.config), *parameters,
                                          std::make_unique<ImmediateDevice>(), staging);
    });
    LoneReplica host(config, layout);
    for (auto* replica : {&device, &host})
      replica->exchange.includes = [](ChunkId k, protocol::Round round) { return (k + round) % 7 != 0; };
    for (int step = 1; step <= 40; ++step) {
      const auto move = [step](std::uint64_t i) {
        return 0.1F * (random_unit(5, static_cast<std::uint64_t>(step), i) - 0.5F);
      };
      device.step(move);
      host.step(move);
    }
    device.loop->finish();
    host.loop->finish();
    EXPECT_EQ(device.loop->global_hash().hex(), host.loop->global_hash().hex());
    EXPECT_EQ(device.local.values, host.local.values);
    EXPECT_EQ(device.exchange.contributions.size(), host.exchange.contributions.size());
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
