// Members reach each other in all cases: one has no port, one cannot be dialled, both dial at once, a name
// has several addresses, addresses are IPv4 or IPv6.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "forwarder.h"
#include "mesh_node.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// With this time-out, two ends often dial at the same time.
LinkOptions hasty() { return {.give_up = 200ms}; }

PeerInfo at_address(PeerInfo info, const std::string& address) {
  info.address = address;
  return info;
}

void expect_traffic(Node& a, Node& b) {
  ASSERT_TRUE(a.sees({b.info()}) && b.sees({a.info()}));
  a.send_to(b.info().id, 5);
  b.send_to(a.info().id, 5);
  EXPECT_TRUE(a.hears(b.info().id, 5) && b.hears(a.info().id, 5));
  EXPECT_THAT(a.wrong(), IsEmpty());
  EXPECT_THAT(b.wrong(), IsEmpty());
}

/// A member's first frame on a lane.
Frame hello_of(const PeerInfo& from, const PeerInfo& to, std::uint64_t number = 0, std::uint64_t lost = 0) {
  PeerHello hello{run_token(), from.id, to.id};
  hello.number = number;
  hello.replaces = lost;
  return {FrameType::peer_hello, to_bytes(hello), nullptr};
}

/// A member that the test plays, listening at this address.
PeerInfo played(const std::string& name, const RawListener& listener) {
  return {protocol::id_of({name, 1, ""}), name, listener.address()};
}

/// Accepts the next connection for lane 0; connections for other lanes are left waiting in `others`.
struct Dialled {
  std::unique_ptr<RawPeer> connection;
  PeerHello hello;
};
Dialled next_for_lane_0(RawListener& listener, std::vector<std::unique_ptr<RawPeer>>& others) {
  for (;;) {
    auto peer = std::make_unique<RawPeer>(listener);
    const auto frame = peer->receive();
    if (!frame) continue;
    const auto hello = from_bytes<PeerHello>(frame->head);
    if (hello.lane == 0) return {std::move(peer), hello};
    others.push_back(std::move(peer));
  }
}

// ---- who dials ----

TEST(Reach, OneWithoutAPortDialsWhoHasOne) {
  for (const bool first : {true, false}) {  // whether the closed one is the first of the two by name
    Node open(first ? "b" : "a"), closed(first ? "a" : "b", 1, {}, NetworkConfig::no_port);
    EXPECT_EQ(closed.info().address, "");
    open.set_peers({closed.info()});
    closed.set_peers({open.info()});
    expect_traffic(open, closed);
  }
}

TEST(Reach, TwoWithoutPortsAreNamedAsLost) {
  Node a("a", 1, {}, NetworkConfig::no_port), b("b", 1, {}, NetworkConfig::no_port);
  a.set_peers({b.info()});
  b.set_peers({a.info()});
  EXPECT_THAT(a.unreachable(0s), testing::ElementsAre(b.info().id));
  EXPECT_THAT(b.unreachable(0s), testing::ElementsAre(a.info().id));
}

TEST(Reach, TheOtherEndDialsWhereTheFirstCannot) {
  const auto node = nodes(2);
  node[0]->set_peers({at_address(node[1]->info(), private_address(60))});  // a port without a listener
  node[1]->set_peers({node[0]->info()});
  expect_traffic(*node[0], *node[1]);
}

/// The end that dialled a lane dials it again and need not wait until the other end fails to.
TEST(Reach, LanesThatTheOtherEndDialledComeBack) {
  const auto node = nodes(2);
  Forwarder way(node[0]->info().address);
  node[0]->set_peers({at_address(node[1]->info(), private_address(61))});
  node[1]->set_peers({at_address(node[0]->info(), way.address())});
  expect_traffic(*node[0], *node[1]);
  for (std::size_t round = 6; round < 9; ++round) {
    way.cut();
    node[0]->send_to(node[1]->info().id, round);
    node[1]->send_to(node[0]->info().id, round);
    EXPECT_TRUE(node[1]->hears(node[0]->info().id, round) && node[0]->hears(node[1]->info().id, round));
  }
}

TEST(Reach, OfTwoWhoDialAtOnceEachLaneComesUpOnce) {
  for (std::uint64_t incarnation = 1; incarnation <= 40; ++incarnation) {
    // b gets the view first. Its patience, a quarter of give_up, ends about when a begins.
    Node a("a", incarnation), b("b", incarnation, {.give_up = 4 * (56ms + incarnation * 200us)});
    b.set_peers({a.info()});
    ASSERT_TRUE(b.ticks(3));
    a.set_peers({b.info()});
    expect_traffic(a, b);
    EXPECT_EQ(a.ups(b.info().id), 1U);
    EXPECT_EQ(b.ups(a.info().id), 1U);
    EXPECT_EQ(a.downs(b.info().id) + b.downs(a.info().id), 0U) << "they must not close each other's lanes";
  }
}

// ---- two connections for one lane ----

TEST(Reach, WhatTheFirstHasDialledStaysWhenTheOtherCrossesIt) {
  Node node("a");
  RawListener listener;
  const auto b = played("b", listener);
  node.set_peers({b});
  std::vector<std::unique_ptr<RawPeer>> others;
  const auto mine = next_for_lane_0(listener, others);  // dialled by the node and not answered yet
  RawPeer crossing(node.info().address);
  crossing.say(hello_of(b, node.info(), 7));
  EXPECT_TRUE(crossing.is_dropped());
  mine.connection->say(hello_of(b, node.info()));
  EXPECT_TRUE(node.sees({b}));
}

TEST(Reach, WhatTheOtherHasDialledGivesWayToTheFirst) {
  Node node("b", 1, hasty());
  RawListener listener;
  const auto a = played("a", listener);
  node.set_peers({a});
  std::vector<std::unique_ptr<RawPeer>> others;
  const auto mine = next_for_lane_0(listener, others);
  RawPeer first(node.info().address);
  first.say(hello_of(a, node.info(), 7));
  EXPECT_TRUE(first.receive());
  EXPECT_TRUE(mine.connection->is_dropped());
  EXPECT_TRUE(node.sees({a}));
}

/// A hello that was sent before the lane was up names no earlier connection and must not replace the lane.
TEST(Reach, OnlyWhoHasHadTheLaneMayReplaceIt) {
  Node node("a");
  RawListener listener;
  const auto b = played("b", listener);
  node.set_peers({b});
  std::vector<std::unique_ptr<RawPeer>> others;
  const auto mine = next_for_lane_0(listener, others);
  mine.connection->say(hello_of(b, node.info()));
  ASSERT_TRUE(node.sees({b}));
  RawPeer late(node.info().address);
  late.say(hello_of(b, node.info(), 7));
  EXPECT_TRUE(late.is_dropped());
  RawPeer next(node.info().address);
  next.say(hello_of(b, node.info(), 8, mine.hello.number));
  EXPECT_TRUE(next.receive()) << "a hello that names the lane's connection must be accepted";
  EXPECT_TRUE(mine.connection->is_dropped());
}

// ---- addresses ----

/// Connects to the first endpoint that answers.
asio::error_code connected(const std::vector<asio::ip::tcp::endpoint>& endpoints,
                           std::optional<asio::ip::tcp::endpoint>& at) {
  asio::io_context io;
  asio::error_code result;
  const auto connect = [&]() -> asio::awaitable<void> {
    asio::ip::tcp::socket socket(io);
    result = co_await connect_to_any(socket, endpoints, 1s);
    if (!result) at = socket.remote_endpoint();
  };
  asio::co_spawn(io, connect(), asio::detached);
  io.run();
  return result;
}

/// If a listener's queue is full, the system does not answer at all.
TEST(Reach, EachAddressOfANameIsTried) {
  asio::io_context io;
  const auto loopback = asio::ip::make_address("127.0.0.1");
  asio::ip::tcp::acceptor full(io, {loopback, 0}), live(io, {loopback, 0}),
      live6(io, {asio::ip::make_address("::1"), 0});
  ASSERT_EQ(::listen(full.native_handle(), 0), 0);
  std::vector<asio::ip::tcp::socket> fill;
  for (int i = 0; i < 3; ++i) {
    fill.emplace_back(io, asio::ip::tcp::v4());
    fill.back().native_non_blocking(true);
    const auto there = full.local_endpoint();
    static_cast<void>(::connect(fill.back().native_handle(), there.data(), there.size()));
  }
  asio::ip::tcp::acceptor closed(io, {loopback, 0});
  const auto refuses = closed.local_endpoint();
  closed.close();

  std::optional<asio::ip::tcp::endpoint> at;
  EXPECT_FALSE(connected({full.local_endpoint(), refuses, live.local_endpoint()}, at));
  EXPECT_EQ(at, live.local_endpoint());
  EXPECT_FALSE(connected({refuses, live6.local_endpoint(), live.local_endpoint()}, at));
  EXPECT_EQ(at, live6.local_endpoint());
  EXPECT_EQ(connected({refuses, full.local_endpoint()}, at), asio::error::timed_out);
  EXPECT_EQ(connected({full.local_endpoint(), refuses}, at), asio::error::connection_refused);
}

TEST(Reach, ANameMayBeOfEitherKindOfAddress) {
  Node a("a"), b("b");
  const auto port_of = [](const Node& node) { return parse_address(node.info().address, "address").port; };
  b.set_peers({a.info()});
  a.set_peers({at_address(b.info(), Address{"localhost", port_of(b)}.to_string())});
  expect_traffic(a, b);
}

TEST(Reach, LanesRunOverIPv6AndOneListenerTakesBoth) {
  Node six("a", 1, {}, "[::1]:0"), both("b", 1, {}, "[::]:0"), four("c");
  EXPECT_THAT(six.info().address, testing::StartsWith("[::1]:"));
  const auto port = parse_address(both.info().address, "address").port;
  six.set_peers({at_address(both.info(), Address{"::1", port}.to_string())});
  four.set_peers({at_address(both.info(), Address{"127.0.0.1", port}.to_string())});
  both.set_peers({six.info(), four.info()});
  expect_traffic(six, both);
  expect_traffic(four, both);
}

NetworkRun::Options over_ipv6() {
  NetworkRun::Options options;
  options.host = "[::1]";
  options.lanes = 2;
  return options;
}

TEST(Reach, ARunOverIPv6EndsLikeAnyOther) {
  NetworkRun run(over_ipv6());
  std::atomic<int> over_six = 0;
  run.before_step = [&](std::size_t, MemberNode& node, std::uint64_t step) {
    if (step == 3 && node.advertised().starts_with("[::1]:")) ++over_six;
  };
  run.start();
  run.expect_good_end();
  EXPECT_EQ(over_six, 2);
  EXPECT_THAT(run.said(), HasSubstr("r0 joined from [::1]:"));
}

// ---- whole runs ----

TEST(Reach, ARunWithAMemberThatOpensNoPortEndsLikeAnyOther) {
  for (const std::size_t closed : {0U, 2U}) {
    NetworkRun::Options options;
    options.members = 3;
    options.lanes = 2;
    NetworkRun run(options);
    run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
      if (m == closed) network.listen = NetworkConfig::no_port;
    };
    run.start();
    run.expect_good_end();
    EXPECT_THAT(run.said(), HasSubstr("r" + std::to_string(closed) + " joined; it opens no port"));
  }
}

/// The newcomer dials its donors. One member with the state has no port and must not be asked.
TEST(Reach, ANewcomerTakesTheStateFromThoseItCanDial) {
  auto options = NetworkRun::Options::lively(2);
  NetworkRun run(options);
  run.adjust_network = [](std::size_t m, NetworkConfig& network) {
    if (m == 1) network.listen = NetworkConfig::no_port;
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 6) run.start_worker(2);
    if (m == 0 && node.status().view->members.size() == 3 && run.last_step == NetworkRun::for_ever)
      run.last_step = step + 40;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("r2 copies the state from 1 member\n"));
}

Frame bridge_hello(const PeerInfo& from, const PeerInfo& to, PeerRole role, std::uint64_t beyond) {
  PeerHello hello{run_token(), from.id, to.id};
  hello.role = role;
  hello.beyond = beyond;
  return {FrameType::peer_hello, to_bytes(hello), nullptr};
}

TEST(Reach, BridgesToStrangersAndFromUninvitedMembersAreRefused) {
  Node a("a"), b("b");
  a.set_peers({b.info()});
  b.set_peers({a.info()});
  expect_traffic(a, b);
  const PeerInfo stranger{77, "stranger", {}};
  RawPeer seeker(a.info().address);
  seeker.say(bridge_hello(stranger, a.info(), PeerRole::bridge_seeker, 78));
  EXPECT_TRUE(seeker.is_dropped()) << "a bridge to an unknown member";
  RawPeer uninvited(a.info().address);
  uninvited.say(bridge_hello(b.info(), a.info(), PeerRole::bridge_end, 5));
  EXPECT_TRUE(uninvited.is_dropped()) << "no bridge waits for it";
  RawPeer unknown(a.info().address);
  unknown.say(bridge_hello(stranger, a.info(), static_cast<PeerRole>(9), 0));
  EXPECT_TRUE(unknown.is_dropped()) << "an unknown role";
  a.send_to(b.info().id, 6);
  EXPECT_TRUE(b.hears(a.info().id, 6)) << "the lanes are the same";
}

/// The member without a port is asked, dials, and gets what the seeker sends. When it closes, the seeker is
/// dropped, however silent it is.
TEST(Reach, ABridgeForwardsBytesBothWays) {
  Node hub("hub");
  const PeerInfo closed{protocol::id_of({"closed", 1, ""}), "closed", {}}, seeker_info{77, "seeker", {}};
  hub.set_peers({closed});
  RawPeer lane(hub.info().address);
  lane.say(hello_of(closed, hub.info(), 1));
  ASSERT_TRUE(lane.receive());
  ASSERT_TRUE(hub.sees({closed}));
  RawPeer seeker(hub.info().address);
  seeker.say(bridge_hello(seeker_info, hub.info(), PeerRole::bridge_seeker, closed.id));
  std::optional<std::uint64_t> number;
  while (!number) {
    const auto frame = lane.receive();
    ASSERT_TRUE(frame);
    if (frame->type == FrameType::bridge_wanted) number = from_bytes<BridgeWanted>(frame->head).number;
  }
  auto end = std::make_unique<RawPeer>(hub.info().address);
  end->say(bridge_hello(closed, hub.info(), PeerRole::bridge_end, *number));
  ASSERT_TRUE(end->receive()) << "the bridge waits for this end";
  end->say(std::string_view("B"));
  ASSERT_TRUE(seeker.receive()) << "the bridge is ready";
  const auto hello = bridge_hello(seeker_info, closed, PeerRole::fetcher, 0);
  seeker.say(hello);
  const auto heard = end->receive();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->head, hello.head);
  end->say(hello_of(closed, seeker_info));
  EXPECT_TRUE(seeker.receive());
  end.reset();
  EXPECT_TRUE(seeker.is_dropped());
}

/// Two trainers and a newcomer without ports, with a reducer between them.
TEST(Reach, ANewcomerReachesTrainersWithoutPortsThroughAReducer) {
  auto options = NetworkRun::Options::lively(2);
  options.reducers = {"hub"};
  NetworkRun run(options);
  run.adjust_network = [](std::size_t m, NetworkConfig& network) {
    if (m < 3) network.listen = NetworkConfig::no_port;
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 6) run.start_worker(2);
    if (m == 0 && node.status().view->members.size() == 4 && run.last_step == NetworkRun::for_ever)
      run.last_step = step + 40;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_THAT(run.said(), HasSubstr("r2 copies the state from 2 members, through hub\n"));
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
