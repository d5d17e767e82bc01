// Lanes of the mesh: which chunk leaves first, at which rate, and the chunks of a lane that stalls.

#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "forwarder.h"
#include "mesh_node.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

protocol::ChunkMessage chunk_of(std::uint64_t round, std::size_t size) {
  return {1, {round, 0, 0, protocol::ChunkKind::contribution}, std::make_shared<const Bytes>(size)};
}

/// Opens a lane of a member "a" that the test plays.
std::unique_ptr<RawPeer> lane_of(const PeerInfo& a, const PeerInfo& to, std::uint16_t lane) {
  auto peer = std::make_unique<RawPeer>(to.address);
  peer->say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, to.id, lane}), nullptr});
  EXPECT_TRUE(peer->receive());
  return peer;
}

ChunkHeader receive_chunk(RawPeer& lane) {
  const auto frame = lane.receive();
  if (!frame || frame->type != FrameType::chunk) throw std::runtime_error("no chunk came");
  ChunkHeader header;
  std::memcpy(&header, frame->head.data(), sizeof header);
  return header;
}

TEST(Lanes, BreakAtRandomAndNothingIsLost) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  auto b = node[1]->info();
  Forwarder way(b.address);
  way.cut_within(300'000);
  b.address = way.address();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  constexpr std::uint64_t rounds = 100;
  const auto expect_all = [&](Node& from, const PeerInfo& sender, Node& to, const PeerInfo& receiver) {
    for (std::uint64_t round = 1; round <= rounds; ++round) from.send_to(receiver.id, round, 2000);
    for (std::uint64_t round = 1; round <= rounds; ++round)
      ASSERT_TRUE(to.hears(sender.id, round)) << "round " << round << " of " << sender.name;
  };
  expect_all(*node[0], a, *node[1], b);
  expect_all(*node[1], b, *node[0], a);
  EXPECT_GT(way.connections(), 2 * lanes) << "no lane broke, so nothing was tested";
}

/// One of two lanes accepts chunks and never acknowledges them; in the end the other must deliver all.
void expect_silent_lane_is_found(std::uint64_t rounds, std::size_t size) {
  Node node("b");
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  const auto silent = lane_of(a, node.info(), 0);
  const auto good = lane_of(a, node.info(), 1);
  ASSERT_TRUE(node.sees({a}));
  std::set<std::uint64_t> missing;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    missing.insert(round);
    node.send_to(a.id, chunk_of(round, size));
  }
  while (!missing.empty()) {
    const auto header = receive_chunk(*good);
    missing.erase(header.round);
    good->say(ack_frame(header.view, key_of(header)));
  }
  EXPECT_TRUE(node.says("lane 0 to a delivers nothing while others do"));
  EXPECT_TRUE(silent->is_dropped());
  EXPECT_EQ(node.downs(a.id), 0U);
}

TEST(Lanes, OneThatStallsGivesItsChunksToAnother) {
  expect_silent_lane_is_found(500,
                              64 << 10);  // 32 MB, more than the system's buffers hold: both lanes get some
}

TEST(Lanes, OneThatTakesTheLittleThereIsAndStallsIsFound) { expect_silent_lane_is_found(5, 1000); }

TEST(Lanes, WhatIsDueFirstOvertakesWhatWaits) {
  Node node("b");
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  const auto only = lane_of(a, node.info(), 0);
  ASSERT_TRUE(node.sees({a}));
  constexpr std::uint64_t later = 500;
  for (std::uint64_t round = 100; round < 100 + later; ++round)  // 32 MB, more than the system's buffers hold
    node.send_to(a.id, chunk_of(round, 64 << 10));
  node.send_to(a.id, chunk_of(1, 100));
  std::uint64_t before = 0;
  while (receive_chunk(*only).round != 1) ++before;
  EXPECT_LT(before, later / 2) << "only the chunks in the sockets may leave first";
}

TEST(Lanes, NoMoreIsSentThanTheRateAllows) {
  for (const bool system_paces : {true, false}) {
    constexpr std::uint64_t rate = 4'000'000, rounds = 20;
    constexpr std::size_t size = 64 << 10;
    auto node = std::vector<std::unique_ptr<Node>>();
    node.push_back(std::make_unique<Node>("a", 1, LinkOptions{.system_paces = system_paces}));
    node.push_back(std::make_unique<Node>("b"));
    node[0]->send_at_most(rate);
    node[0]->set_peers({node[1]->info()});
    node[1]->set_peers({node[0]->info()});
    ASSERT_TRUE(node[0]->sees({node[1]->info()}) && node[1]->sees({node[0]->info()}));
    ASSERT_TRUE(node[0]->ticks(2));  // by the second tick, all lanes have their shares
    const auto begin = Connection::Clock::now();
    for (std::uint64_t round = 1; round <= rounds; ++round)
      node[0]->send_to(node[1]->info().id, chunk_of(round, size));
    ASSERT_TRUE(node[1]->wait_for_chunks(rounds));
    const auto took = std::chrono::duration<double>(Connection::Clock::now() - begin).count();
    constexpr double at_once = 8 * size;  // what the system sends before it starts to pace
    EXPECT_GE(took, (rounds * size - at_once) / rate) << (system_paces ? "by the system" : "by this process");
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
