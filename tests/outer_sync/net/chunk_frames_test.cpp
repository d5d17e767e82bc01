// Chunk frames between two nodes: their fields arrive, and impossible ones break the protocol.

#include <gmock/gmock.h>

#include <memory>
#include <span>
#include <vector>

#include "isthmus/base/random.h"
#include "mesh_node.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using protocol::ReplicaId;
using testing::IsEmpty;

TEST(ChunkFrames, WeightsAndContributorsArrive) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  const auto sent = [&](const protocol::ChunkMessage& message) {
    const auto before = node[1]->chunks();
    node[0]->send_to(b.id, message);
    EXPECT_TRUE(node[1]->wait_for_chunks(before + 1));
    return node[1]->last_heard();
  };
  const auto bytes = std::make_shared<const Bytes>(4096, std::byte{5});
  const auto contribution = sent({.view = 3,
                                  .key = {1, 0, 2, protocol::ChunkKind::contribution},
                                  .bytes = bytes,
                                  .weight = 1ULL << 50,
                                  .contributors = {}});
  EXPECT_EQ(contribution.weight, 1ULL << 50);
  EXPECT_THAT(contribution.contributors, IsEmpty());
  EXPECT_EQ(*contribution.bytes, *bytes);
  for (const std::size_t count : {0U, 1U, 3U, 1024U}) {
    std::vector<ReplicaId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(random_bits(8, 1, i));
    const auto result = sent({.view = 3,
                              .key = {1, 1, 2, protocol::ChunkKind::result},
                              .bytes = bytes,
                              .weight = 0,
                              .contributors = ids});
    EXPECT_EQ(result.contributors, ids);
    EXPECT_EQ(*result.bytes, *bytes);
    EXPECT_EQ(result.weight, 0U);
  }
}

TEST(ChunkFrames, WhatNoneCanSayBreaksTheProtocol) {
  const protocol::ChunkKey key{1, 0, 0, protocol::ChunkKind::contribution};
  const auto contribution = header_of(1, key);
  auto result = contribution;
  result.kind = static_cast<std::uint8_t>(protocol::ChunkKind::result);
  struct Case {
    const char* words;
    FrameType type;
    ChunkHeader header;
    std::size_t bytes;  ///< bytes after the header
  };
  std::vector<Case> cases;
  const auto add = [&](const char* words, FrameType type, ChunkHeader header, std::size_t bytes,
                       auto change) {
    change(header);
    cases.push_back({words, type, header, bytes});
  };
  const auto has = [](std::uint16_t ids) { return [ids](ChunkHeader& head) { head.contributors = ids; }; };
  add("contributors in a frame that is not a result", FrameType::chunk, contribution, 16, has(2));
  add("contributors in a frame that is not a result", FrameType::ack, result, 0, has(2));
  add("2 contributors in a chunk frame", FrameType::chunk, result, 15, has(2));
  add("1 contributors in a chunk frame", FrameType::chunk, result, 0, has(1));
  add("1025 contributors in a chunk frame", FrameType::chunk, result, 1025 * 8, has(1025));
  add("65535 contributors in a chunk frame", FrameType::chunk, result, 64, has(65535));
  const auto lists = [](std::uint16_t norms) { return [norms](ChunkHeader& head) { head.norms = norms; }; };
  add("norms in a frame that is not a result", FrameType::chunk, contribution, 48, lists(2));
  add("norms in a frame that is not a result", FrameType::ack, result, 0, lists(2));
  add("2 norms in a chunk frame", FrameType::chunk, result, 31, lists(2));
  add("1025 norms in a chunk frame", FrameType::chunk, result, 1025 * 16, lists(1025));
  add("1 contributors in a chunk frame", FrameType::chunk, result, 39, [](ChunkHeader& head) {
    head.norms = 2;
    head.contributors = 1;
  });
  add("a weight in an acknowledgement or a result", FrameType::chunk, result, 16,
      [](ChunkHeader& head) { head.weight = 1; });
  add("a weight in an acknowledgement or a result", FrameType::ack, contribution, 0,
      [](ChunkHeader& head) { head.weight = 1; });
  const auto ranges = [](std::uint32_t count) {
    return [count](ChunkHeader& head) { head.trained_on = count; };
  };
  add("1 ranges of samples in a chunk frame", FrameType::chunk, result, 31, ranges(1));
  add("17 ranges of samples in a chunk frame", FrameType::chunk, contribution, 17 * 32, ranges(17));
  add("16385 ranges of samples in a chunk frame", FrameType::chunk, result, 16385 * 32, ranges(16385));
  add("4294967295 ranges of samples in a chunk frame", FrameType::chunk, result, 64, ranges(~0U));
  add("1 ranges of samples in a chunk frame", FrameType::ack, result, 0, ranges(1));
  add("an acknowledgement followed by 8 bytes", FrameType::ack, contribution, 8, [](ChunkHeader&) {});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", private_address(80)};
  for (const auto& bad : cases) {
    Node node("b");
    node.set_peers({a});
    RawPeer peer(node.info().address);
    peer.say(Frame{FrameType::peer_hello,
                   to_bytes(PeerHello{run_token(), a.id, node.info().id, 0, PeerRole::member}), nullptr});
    ASSERT_TRUE(peer.receive());
    const auto head = std::as_bytes(std::span(&bad.header, 1));
    peer.say(Frame{bad.type, Bytes(head.begin(), head.end()), std::make_shared<const Bytes>(bad.bytes)});
    EXPECT_TRUE(peer.is_dropped());
    EXPECT_TRUE(node.says(bad.words)) << bad.words;
    EXPECT_EQ(node.chunks(), 0U) << bad.words;
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
