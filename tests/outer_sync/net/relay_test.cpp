// A third member relays chunks between two members that cannot connect to each other.

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "forwarder.h"
#include "mesh_node.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

PeerInfo placed_at(PeerInfo info, const std::string& address) {
  info.address = address;
  return info;
}

/// Two members, a and b, that open no port, and the relays r and s.
class Relayed : public testing::Test {
 protected:
  static constexpr auto none = NetworkConfig::no_port;

  void form_view() {
    a.set_peers({b.info(), r.info(), s.info()});
    b.set_peers({a.info(), r.info(), s.info()});
    r.set_peers({a.info(), b.info(), s.info()});
    s.set_peers({a.info(), b.info(), r.info()});
  }
  protocol::Relays by(const Node& relay) { return {++number, {{a.info().id, b.info().id, relay.info().id}}}; }
  void tell_all(const protocol::Relays& relays) {
    for (auto* node : {&a, &b, &r, &s}) node->set_relays(relays);
  }
  void expect_traffic(std::uint64_t round, std::size_t size = 2000) {
    ASSERT_TRUE(a.sees({b.info()}) && b.sees({a.info()}));
    a.send_to(b.info().id, round, size);
    b.send_to(a.info().id, round, size);
    EXPECT_TRUE(b.hears(a.info().id, round) && a.hears(b.info().id, round)) << "round " << round;
  }
  void expect_nothing_wrong() {
    for (auto* node : {&a, &b, &r, &s}) EXPECT_THAT(node->wrong(), IsEmpty()) << node->info().name;
  }

  std::uint64_t number = 0;
  Node a{"a", 1, {}, none}, b{"b", 1, {}, none}, r{"r"}, s{"s"};
};

TEST_F(Relayed, TwoWithoutPortsSendToEachOther) {
  form_view();
  tell_all(by(r));
  for (std::uint64_t round = 1; round <= 20; ++round) expect_traffic(round, largest_chunk);
  EXPECT_THAT(a.relayed(), ElementsAre(b.info().id));
  EXPECT_THAT(a.unreachable(0s), IsEmpty());
  EXPECT_EQ(r.chunks(), 0U) << "a relay must not keep what it carries";
  EXPECT_EQ(a.ups(b.info().id), 1U);
  expect_nothing_wrong();
}

/// No chunks are sent before all three know the relay.
TEST_F(Relayed, AllThreeMustHaveBeenTold) {
  form_view();
  const auto relays = by(r);
  ASSERT_TRUE(a.sees({r.info(), s.info()}) && b.sees({r.info(), s.info()}));
  a.set_relays(relays);
  b.set_relays(relays);
  ASSERT_TRUE(a.ticks(3) && b.ticks(3)) << "they hail each other without an answer";
  EXPECT_THAT(a.unreachable(0s), ElementsAre(b.info().id));
  r.set_relays(relays);
  expect_traffic(1);
  expect_nothing_wrong();
}

TEST_F(Relayed, WhatTheResultOfAnOwnerSaysArrives) {
  form_view();
  tell_all(by(r));
  ASSERT_TRUE(a.sees({b.info()}));
  const auto bytes = std::make_shared<const Bytes>(4096, std::byte{5});
  const std::vector<ReplicaId> ids{3, 9, 27};
  const std::vector<protocol::SquaredNorm> norms{{3, 1.5}, {9, 2.5}};
  a.send_to(b.info().id, {.view = 3,
                          .key = {1, 1, 2, protocol::ChunkKind::result},
                          .bytes = bytes,
                          .weight = 0,
                          .contributors = ids,
                          .norms = norms});
  ASSERT_TRUE(b.wait_for_chunks(1));
  EXPECT_EQ(b.last_heard().contributors, ids);
  EXPECT_EQ(b.last_heard().norms, norms);
  EXPECT_EQ(*b.last_heard().bytes, *bytes);
  EXPECT_EQ(b.last_heard().view, 3U);
}

TEST_F(Relayed, NothingIsLostWhereTheRelaysLanesBreak) {
  Forwarder to_r(r.info().address), to_r_too(r.info().address);
  to_r.cut_within(400'000);
  to_r_too.cut_within(400'000);
  a.set_peers({b.info(), placed_at(r.info(), to_r.address())});
  b.set_peers({a.info(), placed_at(r.info(), to_r_too.address())});
  r.set_peers({a.info(), b.info()});
  tell_all(by(r));
  for (std::uint64_t round = 1; round <= 30; ++round) {
    a.send_to(b.info().id, round, 2000);
    b.send_to(a.info().id, round, 2000);
  }
  for (std::uint64_t round = 1; round <= 30; ++round)
    ASSERT_TRUE(b.hears(a.info().id, round) && a.hears(b.info().id, round)) << "round " << round;
  EXPECT_GT(to_r.connections() + to_r_too.connections(), 4 * lanes) << "no lane broke, so nothing was tested";
  expect_nothing_wrong();
}

TEST_F(Relayed, AnotherRelayTakesOverInTheMiddleOfTraffic) {
  form_view();
  for (std::uint64_t round = 1; round <= 40; ++round) {
    if (round % 10 == 1) tell_all(by(round % 20 == 1 ? r : s));
    a.send_to(b.info().id, round, 20'000);
    b.send_to(a.info().id, round, 20'000);
  }
  for (std::uint64_t round = 1; round <= 40; ++round)
    ASSERT_TRUE(b.hears(a.info().id, round) && a.hears(b.info().id, round)) << "round " << round;
  expect_nothing_wrong();
}

TEST_F(Relayed, WithoutItsRelayTheOtherEndIsLost) {
  form_view();
  tell_all(by(r));
  expect_traffic(1);
  tell_all({++number, {}});
  EXPECT_TRUE(a.loses(b.info().id) && b.loses(a.info().id));
  EXPECT_THAT(a.unreachable(0s), ElementsAre(b.info().id));
  EXPECT_THAT(a.relayed(), IsEmpty());
  tell_all(by(s));
  expect_traffic(2);
  expect_nothing_wrong();
}

TEST_F(Relayed, ARelayThatLosesOneEndSaysSo) {
  Forwarder to_r(r.info().address);
  a.set_peers({b.info(), r.info()});
  b.set_peers({a.info(), placed_at(r.info(), to_r.address())});
  r.set_peers({a.info(), b.info()});
  tell_all(by(r));
  expect_traffic(1);
  to_r.cut_off();
  EXPECT_TRUE(r.loses(b.info().id));
  EXPECT_TRUE(a.loses(b.info().id)) << "a's lanes are all up, so the relay must report the loss";
  a.send_to(b.info().id, 2);
  to_r.refuse(false);
  EXPECT_TRUE(b.hears(a.info().id, 2));
  expect_nothing_wrong();
}

TEST(Relay, ADirectLaneTakesOver) {
  const auto node = nodes(3);
  auto &a = *node[0], &b = *node[1], &r = *node[2];
  Forwarder way(b.info().address);
  way.refuse();
  a.set_peers({placed_at(b.info(), way.address()), r.info()});
  b.set_peers({placed_at(a.info(), private_address(62)), r.info()});
  r.set_peers({a.info(), b.info()});
  const protocol::Relays relays{1, {{a.info().id, b.info().id, r.info().id}}};
  for (auto* one : {&a, &b, &r}) one->set_relays(relays);
  ASSERT_TRUE(a.sees({b.info()}) && b.sees({a.info()}));
  const auto send = [&](std::uint64_t round) {
    a.send_to(b.info().id, round, 20'000);
    b.send_to(a.info().id, round, 20'000);
  };
  for (std::uint64_t round = 1; round <= 10; ++round) send(round);
  EXPECT_THAT(a.relayed(), ElementsAre(b.info().id));
  way.refuse(false);
  for (std::uint64_t round = 11; !a.relayed().empty() || !b.relayed().empty() || round < 20; ++round)
    send(round);
  for (auto* one : {&a, &b, &r}) one->set_relays({2, {}});
  send(5000);
  EXPECT_TRUE(b.hears(a.info().id, 5000) && a.hears(b.info().id, 5000));
  for (std::uint64_t round = 1; round < 20; ++round)
    EXPECT_TRUE(b.hears(a.info().id, round) && a.hears(b.info().id, round)) << "round " << round;
  for (auto* one : {&a, &b, &r}) EXPECT_THAT(one->wrong(), IsEmpty());
}

// ---- messages that no member may send ----

Frame chunk_by(ReplicaId from, ReplicaId to, std::size_t size = 100) {
  const protocol::ChunkKey key{1, 0, 0, protocol::ChunkKind::contribution};
  return relayed_frame(from, to, chunk_frame({1, key, std::make_shared<const Bytes>(size)}));
}

/// A member "a" in the view of node "b", played by the test.
struct Played {
  explicit Played(Node& node) {
    node.set_peers({info, c});
    lane = std::make_unique<RawPeer>(node.info().address);
    lane->say(
        Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), info.id, node.info().id}), nullptr});
    EXPECT_TRUE(lane->receive());
  }
  PeerInfo info{protocol::id_of({"a", 1, ""}), "a", ""}, c{protocol::id_of({"c", 1, ""}), "c", ""};
  std::unique_ptr<RawPeer> lane;
};

TEST(Relay, WhatNobodyMaySayByARelayBreaksTheProtocol) {
  const auto expect = [](auto make, const char* words) {
    Node node("b");
    Played a(node);
    a.lane->say(make(node, a));
    EXPECT_TRUE(a.lane->is_dropped()) << words;
    EXPECT_TRUE(node.says(words)) << words;
    EXPECT_EQ(node.chunks(), 0U) << words;
  };
  expect([](Node&, Played& a) { return chunk_by(a.c.id, 77); }, "in the name of another");
  expect([](Node&, Played& a) { return chunk_by(a.info.id, a.c.id, 2 * largest_chunk_frame(largest_chunk)); },
         "; expected at most ");
  expect([](Node&, Played& a) { return relayed_frame(a.info.id, a.c.id, control_frame(protocol::Hold{})); },
         "that is never relayed");
  expect(
      [](Node&, Played& a) {
        return relayed_frame(a.info.id, a.c.id, {FrameType::relay_lost, {}, nullptr});
      },
      "that only a relay may send");
  // The relay must check it; otherwise the other end would blame the relay.
  expect(
      [](Node&, Played& a) {
        return relayed_frame(a.info.id, a.c.id, {FrameType::hail, Bytes(3), nullptr});
      },
      "message");
  expect(
      [](Node&, Played& a) {
        return relayed_frame(a.info.id, a.c.id, {FrameType::begun, Bytes(3), nullptr});
      },
      "message");
  expect([](Node&, Played&) { return Frame{FrameType::relayed, Bytes(10), nullptr}; }, "without its header");
  expect(
      [](Node&, Played&) {
        return Frame{FrameType::hail, to_bytes(Hail{}), nullptr};
      },
      "has no place on a bulk");
}

/// Frames from a member that is not a relay may come from a former relay. They break no rule and are ignored.
TEST(Relay, WhoWasNotNamedIsNotHeardAndCarriesNothing) {
  Node node("b");
  Played a(node);
  a.lane->say(chunk_by(a.c.id, node.info().id));  // from "c"; a is not a relay for that
  a.lane->say(chunk_by(a.info.id, a.c.id));       // for c; this node is not a relay for that
  const auto answer = a.lane->receive();
  ASSERT_TRUE(answer && answer->type == FrameType::relayed);
  RelayHeader header;
  std::memcpy(&header, answer->head.data(), sizeof header);
  EXPECT_EQ(header.inner, FrameType::relay_lost);
  EXPECT_EQ(header.from, a.c.id);
  EXPECT_EQ(node.chunks(), 0U);
  EXPECT_THAT(node.wrong(), IsEmpty());
}

// ---- messages that a relay keeps ----

/// A relay "r" between two ends, "a" and "c", that the test plays.
class Carrier : public testing::Test {
 protected:
  static constexpr std::size_t max_queued = 50'000;
  struct End {
    PeerInfo info;
    std::vector<std::unique_ptr<RawPeer>> lanes;
  };
  Carrier() {
    r.set_peers({a.info, c.info});
    tell({{a.info.id, c.info.id, r.info().id}});
    for (auto* end : {&a, &c}) {
      for (std::uint16_t lane = 0; lane < lanes; ++lane) connect(*end, lane);
    }
  }
  void connect(End& end, std::uint16_t lane) {
    end.lanes.push_back(std::make_unique<RawPeer>(r.info().address));
    const PeerHello hello{run_token(), end.info.id, r.info().id, lane};
    end.lanes.back()->say(Frame{FrameType::peer_hello, to_bytes(hello), nullptr});
    EXPECT_TRUE(end.lanes.back()->receive());
  }
  void tell(std::vector<protocol::Relay> relays) { r.set_relays({++number, std::move(relays)}); }
  void say_chunk(std::uint64_t round, protocol::ViewNumber view = 1, std::size_t size = 1000) {
    const protocol::ChunkKey key{round, 0, 0, protocol::ChunkKind::contribution};
    a.lanes[0]->say(
        relayed_frame(a.info.id, c.info.id, chunk_frame({view, key, std::make_shared<const Bytes>(size)})));
  }
  /// The type of the relay's answer to `a`.
  FrameType answer() {
    const auto frame = a.lanes[0]->receive();
    if (!frame || frame->type != FrameType::relayed) return FrameType{};
    RelayHeader header;
    std::memcpy(&header, frame->head.data(), sizeof header);
    EXPECT_EQ(header.from, c.info.id);
    return header.inner;
  }
  /// The round of the next chunk that reaches `c` on this lane; 0 if none.
  std::uint64_t next_round(std::size_t lane) {
    const auto frame = c.lanes[lane]->receive();
    if (!frame) return 0;
    const auto skip = frame->type == FrameType::relayed ? sizeof(RelayHeader) : 0;
    ChunkHeader header;
    std::memcpy(&header, frame->head.data() + skip, sizeof header);
    return header.round;
  }

  std::uint64_t number = 0;
  End a{{protocol::id_of({"a", 1, ""}), "a", ""}, {}}, c{{protocol::id_of({"c", 1, ""}), "c", ""}, {}};
  Node r{"r", 1, {.max_queued = max_queued}};
};

/// The other end does not acknowledge. The relay's memory is limited, and filling it must not block the other
/// end.
TEST_F(Carrier, NoMoreIsKeptThanAnyMemberMayHaveToRepeat) {
  std::size_t taken = 0;
  for (std::uint64_t round = 1; round <= 200; ++round) {
    say_chunk(round);
    const auto said = answer();
    if (said == FrameType::relay_lost) break;
    ASSERT_EQ(said, FrameType::relay_taken);
    ++taken;
  }
  EXPECT_GE(taken * 1000, max_queued * 9 / 10);
  EXPECT_LE(taken * 1000, max_queued);
  EXPECT_EQ(r.downs(c.info.id), 0U) << "the other end must not be dropped";
  say_chunk(201);
  EXPECT_EQ(answer(), FrameType::relay_taken) << "the kept chunks must be dropped and reported as lost";
}

/// No member would acknowledge it, so the chunk would stay there and make the lane look broken.
TEST_F(Carrier, WhatIsOfAnOlderViewIsTakenAndNotSentOn) {
  r.view_begun(5);
  say_chunk(1, 4);
  EXPECT_EQ(answer(), FrameType::relay_taken);
  say_chunk(2, 5);
  EXPECT_EQ(answer(), FrameType::relay_taken);
  EXPECT_EQ(next_round(0), 2U);
}

TEST_F(Carrier, WithTheRelayEndsWhatItHasTaken) {
  say_chunk(1);
  EXPECT_EQ(answer(), FrameType::relay_taken);
  ASSERT_EQ(next_round(0), 1U);
  tell({});
  c.lanes[0] = nullptr;  // chunks under way on this lane would be sent again on the other
  const protocol::ChunkKey key{2, 0, 0, protocol::ChunkKind::contribution};
  ASSERT_TRUE(r.ticks(3));
  r.send_and_forget(c.info.id, {1, key, std::make_shared<const Bytes>(10)});
  EXPECT_EQ(next_round(1), 2U);
}

// ---- whole runs ----

/// The result must be the same bits as if all were connected.
TEST(Relay, ARunWithTwoThatOpenNoPortEndsLikeAnyOther) {
  NetworkRun::Options options;
  options.members = 3;
  options.lanes = 2;
  NetworkRun run(options);
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m != 1) network.listen = NetworkConfig::no_port;
  };
  run.start();
  run.expect_good_end();
  EXPECT_THAT(run.said(), HasSubstr("r0 and r2 cannot reach each other; their chunks are relayed by r1"));
}

TEST(Relay, TwoWhoseAddressesLeadNowhereGetARelayInTime) {
  NetworkRun::Options options;
  options.members = 3;
  options.detect_timeout = 2;
  NetworkRun run(options);
  Forwarder to_r1(private_address(63));
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    network.listen = m == 1 ? private_address(63) : "127.0.0.1:0";
    network.advertise = m == 1 ? to_r1.address() : private_address(64);  // a port without a listener
  };
  run.start();
  run.expect_good_end();
  EXPECT_THAT(run.said(), HasSubstr("r0 and r2 cannot reach each other; their chunks are relayed by r1"));
  EXPECT_EQ(run.times_said("is left out"), 0U);
}

TEST(Relay, AReducerRelaysToo) {
  NetworkRun::Options options;
  options.reducers = {"hub"};
  NetworkRun run(options);
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m < 2) network.listen = NetworkConfig::no_port;
  };
  run.start();
  run.expect_good_end();
  EXPECT_THAT(run.said(), HasSubstr("r0 and r1 cannot reach each other; their chunks are relayed by hub"));
}

/// The newcomer and one member have no port. The newcomer copies the state from the other member, which
/// relays for them.
TEST(Relay, ANewcomerWithoutAPortComesIn) {
  auto options = NetworkRun::Options::lively(2);
  NetworkRun run(options);
  run.adjust_network = [](std::size_t m, NetworkConfig& network) {
    if (m != 0) network.listen = NetworkConfig::no_port;
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 6) run.start_worker(2);
    if (m == 0 && node.status().view->members.size() == 3 && run.last_step == NetworkRun::for_ever)
      run.last_step = step + 40;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("r1 and r2 cannot reach each other; their chunks are relayed by r0"));
  EXPECT_EQ(run.times_said("is left out"), 0U);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
