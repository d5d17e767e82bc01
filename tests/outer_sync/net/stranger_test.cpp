// Strangers, and members that break the protocol, at the ports of workers and of the coordinator.

#include <gmock/gmock.h>

#include <chrono>
#include <deque>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using transport::Frame;
using transport::FrameHeader;
using transport::FrameType;
using transport::PeerHello;
using transport::PeerRole;

Frame peer_hello(const Digest& token, protocol::ReplicaId from, protocol::ReplicaId to,
                 std::uint16_t lane = 0) {
  return {FrameType::peer_hello, to_bytes(PeerHello{token, from, to, lane, PeerRole::member}), nullptr};
}

/// Sends what strangers may send; each must be disconnected. Strangers that send too little for that stay in
/// `lurkers`.
void attack(const std::string& address, std::deque<RawPeer>& lurkers) {
  SCOPED_TRACE("a stranger at " + address);
  const auto dropped = [&](const auto& words) {
    RawPeer stranger(address);
    stranger.say(words);
    return stranger.is_dropped();
  };
  for (std::uint64_t seed = 0; seed < 5; ++seed) EXPECT_TRUE(dropped(random_bytes(500, seed)));
  EXPECT_TRUE(dropped(std::string_view("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")));
  for (const auto type : {FrameType::control, FrameType::peer_hello, FrameType::chunk}) {
    EXPECT_TRUE(dropped(header_bytes(type, UINT32_MAX))) << "a length of 4 GiB";
    EXPECT_TRUE(dropped(header_bytes(type, 64 * 1024 + 1))) << "a byte more than a stranger may send";
    EXPECT_TRUE(dropped(Frame{type, random_bytes(200, 9), nullptr}));
    EXPECT_TRUE(dropped(Frame{type, {}, nullptr}));
  }
  EXPECT_TRUE(dropped(peer_hello(Digest(), 0, 1))) << "a wrong token";
  EXPECT_TRUE(dropped(Frame{static_cast<FrameType>(77), {}, nullptr}));
  EXPECT_TRUE(dropped(protocol::ControlMessage(protocol::Abort{"ha"})));
  EXPECT_TRUE(dropped(protocol::ControlMessage(protocol::StopRequest{"ha"})));
  RawPeer(address).say(std::string_view());  // connects and disconnects
  const auto begun = header_bytes(FrameType::control, 100);
  lurkers.emplace_back(address).say(std::span(begun).first(7));
  lurkers.emplace_back(address).say(header_bytes(FrameType::peer_hello, 100));
  lurkers.emplace_back(address);
}

TEST(Strangers, InTheMiddleOfARunTheyAreDroppedAndItGoesOn) {
  NetworkRun run({});
  std::deque<RawPeer> lurkers[2];  // one per worker thread
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (step == 4) attack(node.advertised(), lurkers[m]);
    if (step == 7 && m == 0) attack(run.coordinator_address(), lurkers[m]);
  };
  run.start();
  run.expect_good_end();
}

TEST(Strangers, PackedChunksOfTheirsAreDroppedAndTheRunGoesOn) {
  NetworkRun run(NetworkRun::Options::packing());
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 1 || step != 3) return;
    const protocol::ChunkKey key{1, 0, 0, protocol::ChunkKind::contribution};
    RawPeer stranger(node.advertised());
    stranger.say(
        transport::chunk_frame({1, key, nullptr}, std::make_shared<const Bytes>(random_bytes(200, 5))));
    EXPECT_TRUE(stranger.is_dropped());
  };
  run.start();
  run.expect_good_end();
}

TEST(Strangers, BeforeTheRunTheyAreDroppedAndItBegins) {
  NetworkRun run({});
  std::deque<RawPeer> lurkers;
  std::mutex mutex;
  run.before_join = [&](std::size_t, MemberNode& node) {
    const std::lock_guard lock(mutex);
    // A hello can be judged only when the view has begun, so its sender has to wait.
    lurkers.emplace_back(node.advertised()).say(peer_hello(Digest(), 0, 1));
    RawPeer stranger(node.advertised());
    stranger.say(random_bytes(100, 3));
    EXPECT_TRUE(stranger.is_dropped());
  };
  run.start();
  run.expect_good_end();
}

TEST(Strangers, AHelloOfAnotherRunIsRefusedInWords) {
  NetworkRun run({});
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m != 0 || step != 3) return;
    RawPeer stranger(run.coordinator_address());
    auto hello = run.hello(9);
    hello.run = "another";
    stranger.say(protocol::ControlMessage(hello));
    EXPECT_THAT(stranger.receive_control<protocol::Refused>().reason,
                AllOf(HasSubstr("test"), HasSubstr("another")));
    EXPECT_TRUE(stranger.is_dropped());
  };
  run.start();
  run.expect_good_end();
}

TEST(Strangers, ACrowdThatSaysNothingKeepsNobodyOut) {
  NetworkRun::Options options;
  options.elastic = false;
  NetworkRun run(options);
  Forwarder forwarder(private_address(1));
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {  // r0 dials r1
    if (m != 1) return;
    network.listen = private_address(1);
    network.advertise = forwarder.address();
  };
  std::deque<RawPeer> crowd;
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m != 0 || step != 3) return;
    for (int i = 0; i < 100; ++i) {
      crowd.emplace_back(private_address(1));
      crowd.emplace_back(run.coordinator_address());
    }
    forwarder.cut();
    RawPeer late(run.coordinator_address());
    late.say(protocol::ControlMessage(run.hello(9)));
    EXPECT_THAT(late.receive_control<protocol::Refused>().reason, HasSubstr("does not accept late joiners"));
  };
  const auto begin = std::chrono::steady_clock::now();
  run.start();
  run.expect_good_end();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 9) << "members had to wait until the silent strangers were disconnected";
}

// ---- what a stranger may cost a coordinator (for members see mesh_test.cpp) ----

TEST(Strangers, OfACoordinatorMaySay64KiBAndNoMore) {
  const auto answer_to = [](std::uint32_t length, const Bytes& words, const std::string& answer) {
    NetworkRun run({});  // a new run each, since only one line per second is logged
    run.start_coordinator();
    RawPeer stranger(run.coordinator_address());
    stranger.say(header_bytes(FrameType::control, length));
    stranger.say(words);
    EXPECT_TRUE(stranger.is_dropped());
    run.wait_until_said(answer);
    run.coordinator().request_stop("enough");
  };
  answer_to(65536, Bytes(65536, std::byte{99}), "control message has tag 99");  // read as a whole
  answer_to(65537, {}, "a frame of 65537 bytes; expected at most 65536 here");
}

TEST(Strangers, OfACoordinatorThereAre64ForTenSeconds) {
  NetworkRun run({});
  run.start_coordinator();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::deque<RawPeer> crowd;
  for (int n = 0; n < 65; ++n) crowd.emplace_back(run.coordinator_address());
  EXPECT_TRUE(crowd.front().is_dropped());
  EXPECT_LT(seconds(), 9) << "it was disconnected for its silence, not because of the others";
  EXPECT_TRUE(crowd.back().is_dropped()) << "within 20 s";
  EXPECT_GE(seconds(), 9) << "slow links need some time";
  run.coordinator().request_stop("enough");
}

// ---- a member that breaks the protocol ----

/// Plays member 0 ("r0") of a run of two by hand; r1 is real.
class BrokenMember : public testing::Test {
 protected:
  explicit BrokenMember(NetworkRun::Options options = {}) : run(inelastic(std::move(options))) {}
  /// Not elastic: losing r0 ends the run, and its end shows how far r1 got.
  static NetworkRun::Options inelastic(NetworkRun::Options options) {
    options.elastic = false;
    return options;
  }
  void begin() {
    run.adjust_hello = [](std::size_t, protocol::Hello& hello) { hello.member.name = "r1"; };
    run.start_coordinator();
    run.start_worker(1);
    control.emplace(run.coordinator_address());
    auto hello = run.hello(0);
    hello.member = {"r0", 1, "127.0.0.1:1"};
    control->say(protocol::ControlMessage(hello));
    EXPECT_EQ(control->receive_control<protocol::Seal>().view, 1U);
    // Reports what the real member does: both start with the same parameters.
    const FragmentLayout& layout = run.layout();
    const auto initial = initial_parameters(layout);
    protocol::Sealed sealed{
        .view = 1,
        .layout = {layout.fragments().begin(), layout.fragments().end()},
        .chunk_elements = layout.chunk_elements(),
        .fragments = std::vector<protocol::FragmentState>(layout.fragment_count()),
        .history = std::vector<std::vector<protocol::FragmentState>>(layout.fragment_count()),
        .held = {},
        .parameters = hash_of(std::as_bytes(std::span(initial))),
        .ledger = protocol::Ledger(layout.fragment_count())};
    control->say(protocol::ControlMessage(sealed));
    view = control->receive_control<protocol::NewView>();
  }
  /// A lane to r1, with a proper hello.
  std::unique_ptr<RawPeer> dial() {
    auto lane = std::make_unique<RawPeer>(view.view.members.at(1).address);
    lane->say(peer_hello(view.token, id(0), id(1)));
    const auto answer = lane->receive();
    EXPECT_TRUE(answer && answer->type == FrameType::peer_hello) << "a proper hello must be answered";
    return lane;
  }
  protocol::ReplicaId id(std::size_t member) const { return protocol::id_of(view.view.members.at(member)); }
  Frame chunk(Bytes bytes) const {
    const protocol::ChunkKey key{1, owned_by_r1(), 0, protocol::ChunkKind::contribution};
    return transport::chunk_frame({1, key, std::make_shared<const Bytes>(std::move(bytes))});
  }
  ChunkId owned_by_r1() const {
    return static_cast<ChunkId>(std::ranges::find(view.view.owners, 1) - view.view.owners.begin());
  }
  /// Sends a valid chunk. Returns whether it is acknowledged.
  bool is_listened_to(RawPeer& lane) const {
    const auto codec = run.codecs().of(1);
    const std::vector<float> zeros(run.layout().chunk(owned_by_r1()).size, 0.0F);
    Bytes proper(quant::encoded_size(codec, zeros.size()));
    EXPECT_FALSE(quant::encode(codec, zeros, {}, {}, proper));
    lane.say(chunk(proper));
    for (auto frame = lane.receive(); frame; frame = lane.receive()) {
      if (frame->type == FrameType::ack) return true;
    }
    return false;
  }
  /// The run's end as r1 reports it.
  std::string end() {
    control.reset();
    run.finish();
    return run.result(1).error ? run.result(1).error->what() : "no error";
  }

  NetworkRun run;
  std::optional<RawPeer> control;
  protocol::NewView view;
};

TEST_F(BrokenMember, HellosThatDoNotFitAreDropped) {
  begin();
  const auto address = view.view.members.at(1).address;
  const auto dropped = [&](const Frame& frame) {
    RawPeer peer(address);
    peer.say(frame);
    return peer.is_dropped();
  };
  EXPECT_TRUE(dropped(peer_hello(Digest(), id(0), id(1)))) << "another run's token";
  EXPECT_TRUE(dropped(peer_hello(view.token, id(1), id(1)))) << "r1 does not dial itself";
  EXPECT_TRUE(dropped(peer_hello(view.token, id(0), id(0)))) << "meant for r0";
  EXPECT_TRUE(dropped(peer_hello(view.token, id(0), id(1), 1))) << "there is only one lane";
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

TEST_F(BrokenMember, ItsLaneIsDroppedAndMayBeDialledAgain) {
  begin();
  {
    auto lane = dial();
    lane->say(chunk(Bytes(3)));
    EXPECT_TRUE(lane->is_dropped()) << "a chunk of the wrong size";
  }
  {
    auto lane = dial();
    lane->say(transport::control_frame(protocol::Hold{}));
    EXPECT_TRUE(lane->is_dropped()) << "control frames are not allowed on a bulk connection";
  }
  {
    auto lane = dial();
    lane->say(header_bytes(FrameType::chunk, 1U << 30));
    EXPECT_TRUE(lane->is_dropped()) << "longer than any chunk of this run";
  }
  {
    auto lane = dial();
    lane->say(Frame{FrameType::ack, Bytes(5), nullptr});
    EXPECT_TRUE(lane->is_dropped()) << "an acknowledgement without its header";
  }
  EXPECT_TRUE(is_listened_to(*dial()));
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

TEST_F(BrokenMember, WhatItSaysHasArrivedNeedNotBeTrue) {
  begin();
  const auto arrived = [](std::uint64_t at, std::vector<transport::Arrived::Lane> lanes) {
    transport::Arrived said;
    said.at = at;
    said.lanes = std::move(lanes);
    return Frame{FrameType::arrived, to_bytes(said), nullptr};
  };
  {
    auto lane = dial();
    lane->say(arrived(1, {{2, 1}, {4, 1}}));
    EXPECT_TRUE(lane->is_dropped()) << "there is only one lane";
  }
  {
    auto lane = dial();
    lane->say(arrived(UINT64_MAX, {}));
    EXPECT_TRUE(lane->is_dropped()) << "an impossible time";
  }
  {
    auto lane = dial();
    lane->say(Frame{FrameType::arrived, Bytes(11), nullptr});
    EXPECT_TRUE(lane->is_dropped()) << "a truncated count";
  }
  auto lane = dial();
  for (std::uint64_t connection = 0; connection < 10; ++connection)
    lane->say(arrived(connection + 1, {{connection, UINT64_MAX - connection}}));
  EXPECT_TRUE(is_listened_to(*lane)) << "reports of more than was sent must be ignored";
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

/// A run with outer.reject in which r0 owns chunks.
class LyingOwner : public BrokenMember {
 protected:
  LyingOwner() : BrokenMember(rejecting()) {}
  static NetworkRun::Options rejecting() {
    NetworkRun::Options options;
    options.closing.reject = 3;
    return options;
  }
};

TEST_F(LyingOwner, IsNamedForANormThatIsNotR1s) {
  begin();
  const auto chunk = static_cast<ChunkId>(std::ranges::find(view.view.owners, 0) - view.view.owners.begin());
  const Bytes zeros(quant::encoded_size(run.codecs().of(1), run.layout().chunk(chunk).size), std::byte{0});
  const protocol::ChunkMessage result{.view = 1,
                                      .key = {1, chunk, 0, protocol::ChunkKind::result},
                                      .bytes = std::make_shared<const Bytes>(zeros),
                                      .norms = {{id(0), 1}, {id(1), 1e30}}};
  for (int breach = 0; breach < 5; ++breach) {
    auto lane = dial();
    lane->say(transport::chunk_frame(result));
    EXPECT_TRUE(lane->is_dropped());
  }
  run.finish();
  ASSERT_TRUE(run.result(1).error);
  EXPECT_THAT(run.result(1).error->what(),
              AllOf(HasSubstr("r0 breaks the protocol"), HasSubstr("this replica")));
}

/// A run that packs its chunks.
class BrokenPacker : public BrokenMember {
 protected:
  BrokenPacker() : BrokenMember(NetworkRun::Options::packing()) {}

  quant::CodecSpec codec() const { return run.codecs().of(1); }
  std::size_t elements() const { return run.layout().chunk(owned_by_r1()).size; }
  /// An encoded chunk of zeros.
  Bytes proper() const {
    Bytes bytes(quant::encoded_size(codec(), elements()));
    EXPECT_FALSE(quant::encode(codec(), std::vector<float>(elements(), 0.0F), {}, {}, bytes));
    return bytes;
  }
  static Bytes packed(const Bytes& bytes) {
    quant::Packer packer;
    Bytes out(bytes.size());
    out.resize(packer.pack(bytes, 0, out).value());
    return out;
  }
  Frame packed_chunk(Bytes bytes) const {
    const protocol::ChunkKey key{1, owned_by_r1(), 0, protocol::ChunkKind::contribution};
    return transport::chunk_frame({1, key, nullptr}, std::make_shared<const Bytes>(std::move(bytes)));
  }
  bool is_dropped(const Frame& frame) {
    auto lane = dial();
    lane->say(frame);
    return lane->is_dropped();
  }
};

TEST_F(BrokenPacker, ItsLaneIsDroppedAndMayBeDialledAgain) {
  begin();
  const auto good = packed(proper());
  auto longer = proper();
  longer.push_back(std::byte{0});
  auto cut = good;
  cut.pop_back();
  EXPECT_TRUE(is_dropped(packed_chunk(packed(longer)))) << "unpacks to one byte more";
  EXPECT_TRUE(is_dropped(packed_chunk(cut)));
  EXPECT_TRUE(is_dropped(packed_chunk(proper()))) << "not shorter than the unpacked chunk";
  auto unknown = packed_chunk(good);
  unknown.head[offsetof(transport::ChunkHeader, packing)] = std::byte{7};
  EXPECT_TRUE(is_dropped(unknown)) << "packed with an unknown method";

  auto lane = dial();
  lane->say(packed_chunk(good));
  bool acknowledged = false;
  for (auto frame = lane->receive(); frame && !acknowledged; frame = lane->receive())
    acknowledged = frame->type == FrameType::ack;
  EXPECT_TRUE(acknowledged);
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

TEST_F(BrokenPacker, OneThatNeverStopsEndsTheRunByName) {
  begin();
  for (std::uint64_t seed = 0; seed < 5; ++seed)
    EXPECT_TRUE(is_dropped(packed_chunk(random_bytes(100, seed))));
  EXPECT_THAT(control->receive_control<protocol::Abort>().reason,
              AllOf(HasSubstr("r0 breaks the protocol"), HasSubstr("a packed chunk that does not unpack")));
  EXPECT_THAT(end(), HasSubstr("r0 breaks the protocol"));
}

TEST_F(BrokenMember, APackedChunkHasNoPlaceInARunThatPacksNone) {
  begin();
  auto lane = dial();
  auto packed = chunk(Bytes(3));
  packed.head[offsetof(transport::ChunkHeader, packing)] = static_cast<std::byte>(quant::Lossless::zstd);
  lane->say(packed);
  EXPECT_TRUE(lane->is_dropped());
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

TEST_F(BrokenMember, OneThatNeverStopsEndsTheRunByName) {
  begin();
  for (int i = 0; i < 5; ++i) {
    auto lane = dial();
    lane->say(chunk(Bytes(3)));
    EXPECT_TRUE(lane->is_dropped());
  }
  EXPECT_THAT(
      control->receive_control<protocol::Abort>().reason,
      AllOf(HasSubstr("r1 left"), HasSubstr("r0 breaks the protocol"), HasSubstr("a chunk of 3 bytes")));
  EXPECT_THAT(end(), HasSubstr("r0 breaks the protocol"));
}

TEST_F(BrokenMember, ANewLaneReplacesTheOldOne) {
  begin();
  auto first = dial();
  auto second = dial();
  EXPECT_TRUE(first->is_dropped()) << "the peer must know best that the old connection is dead";
  EXPECT_THAT(end(), HasSubstr("r0 is lost"));
}

}  // namespace
}  // namespace isthmus::outer_sync
