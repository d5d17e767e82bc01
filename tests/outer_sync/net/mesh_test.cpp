// The mesh by itself: replicas become peers and stop being peers while chunks are under way.

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

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
  EXPECT_THAT(node[0]->unreachable(0s), testing::UnorderedElementsAreArray(both));
  EXPECT_THAT(node[0]->unreachable(1h), IsEmpty());
  node[0]->set_peers({y});
  EXPECT_THAT(node[0]->unreachable(0s), ElementsAre(y.id));
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
