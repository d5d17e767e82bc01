// The mesh by itself: replicas become peers and stop being peers while chunks are under way.

#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <set>
#include <vector>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "mesh_node.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::ReplicaId;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Mesh, WhoeverStaysKeepsTheLanes) {
  const auto node = nodes(3);
  node[0]->set_peers({node[1]->info()});
  node[1]->set_peers({node[0]->info()});
  ASSERT_TRUE(node[0]->sees({node[1]->info()}) && node[1]->sees({node[0]->info()}));

  node[2]->set_peers({node[0]->info(), node[1]->info()});
  node[0]->set_peers({node[2]->info(), node[1]->info()});
  node[1]->set_peers({node[2]->info(), node[0]->info()});
  ASSERT_TRUE(node[2]->sees({node[0]->info(), node[1]->info()}));
  node[0]->send_to(node[1]->info().id, 5);
  node[2]->send_to(node[1]->info().id, 5);
  EXPECT_TRUE(node[1]->hears(node[0]->info().id, 5) && node[1]->hears(node[2]->info().id, 5));
  EXPECT_EQ(node[0]->ups(node[1]->info().id), 1U) << "lanes that were up must not be dialled again";
  EXPECT_EQ(node[1]->ups(node[0]->info().id), 1U);
  EXPECT_EQ(node[0]->downs(node[1]->info().id) + node[1]->downs(node[0]->info().id), 0U);
}

TEST(Mesh, WhoeverIsGoneIsClosedAtOnceAndHearsOfIt) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  node[0]->set_peers({});
  EXPECT_TRUE(node[1]->loses(a.id));
  EXPECT_EQ(node[1]->downs(a.id), 1U) << "reported once, when the last lane is gone";
  EXPECT_EQ(node[0]->downs(b.id), 0U) << "a node that drops a peer itself gets no report";
  node[0]->set_peers({b});  // a drops b and then admits it again
  EXPECT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
}

TEST(Mesh, AHelloThatComesBeforeItsViewWaitsForIt) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  RawPeer early(b.address);
  early.say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, b.id, 0, PeerRole::member}),
                  nullptr});
  node[1]->set_peers({});  // a view without a: the hello must keep waiting
  node[1]->set_peers({a});
  const auto answer = early.receive();
  ASSERT_TRUE(answer && answer->type == FrameType::peer_hello)
      << "the hello must be accepted when the view begins";
  EXPECT_EQ(from_bytes<PeerHello>(answer->head).from, b.id);
}

TEST(Mesh, AHelloOfWhomNoViewNamesIsDropped) {
  Node node("b", 1, {.hello_limit = 200ms});
  RawPeer stranger(node.info().address);
  stranger.say(Frame{FrameType::peer_hello,
                     to_bytes(PeerHello{run_token(), 5, node.info().id, 0, PeerRole::member}), nullptr});
  EXPECT_TRUE(stranger.is_dropped());
  EXPECT_TRUE(node.says("not a member of a view"));
}

/// The first connection has closed before the view begins and must not displace the second.
TEST(Mesh, WhoeverHangsUpWhileItWaitsIsNotLetIn) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  const Frame hello{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, b.id, 0, PeerRole::member}),
                    nullptr};
  RawPeer(b.address).say(hello);
  RawPeer second(b.address);
  second.say(hello);
  node[1]->set_peers({a});
  EXPECT_TRUE(second.receive().has_value());
  EXPECT_EQ(node[1]->ups(a.id), 1U);
}

TEST(Mesh, APeerThatDoesNotReadCostsABoundedQueue) {
  constexpr std::size_t limit = 1 << 20, size = 64 << 10;
  const BufferPool chunks(size, 4);
  Node node("b", 1, {.max_queued = limit});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  std::vector<std::unique_ptr<RawPeer>> peer;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    peer.push_back(std::make_unique<RawPeer>(node.info().address));
    peer.back()->say(Frame{
        FrameType::peer_hello,
        to_bytes(PeerHello{run_token(), a.id, node.info().id, static_cast<std::uint16_t>(lane)}), nullptr});
  }
  ASSERT_TRUE(node.sees({a}));
  std::size_t most = 0;
  for (std::uint64_t round = 1; round <= 1000; ++round) {  // 64 MB, more than the system's buffers hold
    const protocol::ChunkKey key{round, 0, 0, protocol::ChunkKind::contribution};
    node.send_and_forget(a.id, {1, key, chunks.take(size)});
    most = std::max(most, chunks.in_use());
  }
  EXPECT_TRUE(node.says("dropped the connections to a: it does not read"));
  EXPECT_LE(most * size, limit + 2 * size) << "one message above the limit, and one just made";
}

/// Every `begun` is answered. The answers must not pile up if the peer does not read them.
TEST(Mesh, APeerThatAsksForMoreAnswersThanItReadsIsDropped) {
  Node node("b", 1, {.max_queued = 1 << 20});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  RawPeer peer(node.info().address);
  peer.say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, node.info().id}), nullptr});
  ASSERT_TRUE(node.sees({a}));
  const auto begun = begun_frame(1);
  const FrameHeader header{.type = begun.type, .length = static_cast<std::uint32_t>(begun.head.size())};
  auto once = bytes_of(header);
  once.insert(once.end(), begun.head.begin(), begun.head.end());
  Bytes many;
  for (int i = 0; i < 5000; ++i) many.insert(many.end(), once.begin(), once.end());
  for (int i = 0; i < 400; ++i) peer.say(many);  // 40 MB, more than the system's buffers hold
  EXPECT_TRUE(node.says("it asks for more answers than it reads"));
}

// ---- what a stranger may cost (docs/architecture.md) ----

Bytes header_of_hello(std::uint32_t length) {
  return bytes_of(FrameHeader{.type = FrameType::peer_hello, .length = length});
}

/// The time-out is too long to have a part in this.
TEST(Mesh, AStrangerMaySay64KiBAndNoMore) {
  Node node("b", 1, {.hello_limit = 1h});
  RawPeer most(node.info().address), more(node.info().address);
  most.say(header_of_hello(65536));
  most.say(Bytes(65536));
  EXPECT_TRUE(most.is_dropped());
  EXPECT_TRUE(node.says("message has bytes left over")) << "64 KiB are accepted, but are not a hello";
  more.say(header_of_hello(65537));
  EXPECT_TRUE(more.is_dropped());
}

TEST(Mesh, Of64StrangersNoneIsDroppedAndOf65TheOldest) {
  Node node("b", 1, {.hello_limit = 1h});
  std::deque<RawPeer> crowd;
  for (int n = 0; n < 65; ++n) crowd.emplace_back(node.info().address);
  EXPECT_TRUE(crowd.front().is_dropped());
  for (std::size_t n = 1; n < crowd.size(); ++n) {
    pollfd dropped{.fd = crowd[n].handle(), .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(::poll(&dropped, 1, 0), 0) << "stranger " << n << " was dropped too";
  }
}

TEST(Mesh, AStrangerHasTenSecondsToSayWhoItIs) {
  Node node("b");
  const auto begin = std::chrono::steady_clock::now();
  RawPeer stranger(node.info().address);
  EXPECT_TRUE(stranger.is_dropped()) << "within 20 s";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 9s) << "slow links need some time";
}

// ---- lanes ----

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

TEST(Mesh, APeerListThatCannotBeIsRefusedAndChangesNothing) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  const auto refused = [&](std::vector<PeerInfo> peers) -> std::string {
    try {
      node[0]->set_peers(std::move(peers));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused({{9, "c", "nowhere"}}), AllOf(HasSubstr("the address of c"), HasSubstr("HOST:PORT")));
  EXPECT_THAT(refused({b, b}), HasSubstr("b is named twice"));
  EXPECT_THAT(refused({a}), HasSubstr("a is named twice"));
  node[0]->send_to(b.id, 3);
  EXPECT_TRUE(node[1]->hears(a.id, 3));
  EXPECT_EQ(node[1]->downs(a.id), 0U);
}

TEST(Mesh, ThoseWhoCannotBeReachedAreAllNamed) {
  const auto node = nodes(1);
  const auto nobody = [](const std::string& name, std::size_t n) {
    return PeerInfo{protocol::id_of({name, 1, ""}), name, private_address(n)};
  };
  const auto x = nobody("x", 70);
  const auto y = nobody("y", 71);
  node[0]->set_peers({x, y});
  std::vector<ReplicaId> both{x.id, y.id};
  EXPECT_THAT(node[0]->lost(0s), testing::UnorderedElementsAreArray(both));
  EXPECT_THAT(node[0]->lost(1h), IsEmpty());
  node[0]->set_peers({y});
  EXPECT_THAT(node[0]->lost(0s), ElementsAre(y.id));
}

TEST(Mesh, APeerMayBeDroppedWhileItIsListenedTo) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  node[1]->drop_all_when_heard();
  for (std::uint64_t round = 1; round <= 50; ++round) node[0]->send_to(b.id, round);
  EXPECT_TRUE(node[0]->loses(b.id));
  EXPECT_EQ(node[1]->chunks(), 1U) << "chunks under way must not be delivered after the drop";
  EXPECT_THAT(node[1]->wrong(), IsEmpty());
}

/// A restarted replica is another peer at the same address.
TEST(Mesh, OneThatCameBackTakesThePlaceOfTheOldOne) {
  auto node = nodes(2);
  const auto a = node[0]->info();
  const auto before = node[1]->info();
  node[0]->set_peers({before});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({before}));
  node[1] = nullptr;
  EXPECT_TRUE(node[0]->loses(before.id));
  node[1] = std::make_unique<Node>("b", 2, LinkOptions{}, before.address);
  const auto after = node[1]->info();
  ASSERT_NE(after.id, before.id);
  node[1]->set_peers({a});
  node[0]->set_peers({after});
  ASSERT_TRUE(node[0]->sees({after}) && node[1]->sees({a}));
  node[0]->send_to(before.id, 1);
  node[0]->send_to(after.id, 2);
  EXPECT_TRUE(node[1]->hears(a.id, 2));
  EXPECT_EQ(node[1]->chunks(), chunks_of_a_round) << "a chunk for the old replica reached the new one";
  EXPECT_THAT(node[0]->wrong(), IsEmpty());
}

// ---- fields of a chunk frame ----

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
  add("a weight in a frame that is not a contribution", FrameType::chunk, result, 16,
      [](ChunkHeader& head) { head.weight = 1; });
  add("a weight in a frame that is not a contribution", FrameType::ack, contribution, 0,
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

// ---- everything at once ----

/// Four replicas, each of which may be a member. All members send to each other all the time.
class Changing : public testing::Test {
 protected:
  static constexpr std::uint64_t all = 15;

  static bool has(std::uint64_t members, std::size_t n) { return (members >> n & 1) != 0; }
  std::vector<PeerInfo> others(std::size_t me, std::uint64_t members) const {
    std::vector<PeerInfo> out;
    for (std::size_t n = 0; n < node.size(); ++n) {
      if (n != me && has(members, n)) out.push_back(node[n]->info());
    }
    return out;
  }
  void form_view(std::uint64_t members) {
    for (std::size_t n = 0; n < node.size(); ++n)
      node[n]->set_peers(has(members, n) ? others(n, members) : std::vector<PeerInfo>());
  }
  void all_send(std::uint64_t round) {
    for (std::size_t n = 0; n < node.size(); ++n) {
      for (const auto& peer : others(n, all)) node[n]->send_to(peer.id, round);
    }
  }
  void start_again(std::size_t n) {
    const auto name = node[n]->info().name;
    expect_nothing_wrong(n);
    node[n] = nullptr;
    node[n] = std::make_unique<Node>(name, ++incarnation);
  }
  void expect_nothing_wrong(std::size_t n) {
    EXPECT_THAT(node[n]->wrong(), IsEmpty()) << "replica " << node[n]->info().name;
  }

  std::vector<std::unique_ptr<Node>> node = nodes(4);
  std::uint64_t incarnation = 1;
};

TEST_F(Changing, TwoHundredTimesInTheMiddleOfTrafficAllAreConnectedInTheEnd) {
  for (std::uint64_t change = 1; change <= 200; ++change) {
    const auto random = random_bits(3, 1, change);
    if (const auto back = random >> 8 & 15; back < node.size()) start_again(back);
    const auto members = change == 200 ? all : random & all;
    form_view(members);
    all_send(change);
    const bool settles = (random >> 16 & 3) == 0;  // most views end before their lanes are up
    for (std::size_t n = 0; settles && n < node.size(); ++n) {
      ASSERT_TRUE(!has(members, n) || node[n]->sees(others(n, members))) << "change " << change;
    }
  }
  for (std::size_t n = 0; n < node.size(); ++n) {
    for (const auto& peer : others(n, all))
      EXPECT_TRUE(node[n]->hears(peer.id, 200)) << node[n]->info().name << " from " << peer.name;
    expect_nothing_wrong(n);
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
