// Exchanges in pairs over real sockets.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

NetworkRun::Options gossiping_run(std::size_t members) {
  NetworkRun::Options options;
  options.members = members;
  options.steps = 60;
  options.pace = 0.004;  // so that exchanges have time to arrive
  options.outer = config_of(2, 20, 2, std::nullopt);
  options.outer.gossip_every = 5;
  options.layout = layout_of(2);
  return options;
}

void expect_exchanges(NetworkRun& run, std::size_t members) {
  std::vector<std::size_t> workers(members);
  std::iota(workers.begin(), workers.end(), std::size_t{0});
  run.expect_one_end(workers);
  std::uint64_t averaged = 0, refused = 0;
  for (const auto m : workers) {
    averaged += run.result(m).gossip.averaged;
    refused += run.result(m).gossip.refused;
  }
  EXPECT_GT(averaged, 0U);
  EXPECT_EQ(refused, 0U);
}

TEST(GossipNetwork, ExchangesTakePlaceAndTheRoundsStayAgreed) {
  for (const std::size_t members : {2, 3, 4}) {
    NetworkRun run(gossiping_run(members));
    run.start();
    run.finish();
    expect_exchanges(run, members);
  }
}

TEST(GossipNetwork, PackedChunksAreExchangedToo) {
  auto options = NetworkRun::Options::packing();
  options.members = 2;
  options.steps = 60;
  options.pace = 0.01;
  options.outer.sync_every = 20;
  options.outer.sync_delay = 2;
  options.outer.gossip_every = 5;
  options.outer.lossless = "zstd";
  NetworkRun run(options);
  run.start();
  run.finish();
  expect_exchanges(run, 2);
}

// Before the two have a view of their own, each can average three times at most.
TEST(GossipNetwork, AfterALossTheOthersExchange) {
  auto options = gossiping_run(3);
  options.steps = 400;
  NetworkRun run(options);
  run.before_step = [](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 2 && step == 2) throw NetworkRun::Vanish{};
  };
  run.start();
  run.finish();
  expect_exchanges(run, 2);
  EXPECT_GT(run.result(0).gossip.averaged + run.result(1).gossip.averaged, 2U * 3);
}

}  // namespace
}  // namespace isthmus::outer_sync
