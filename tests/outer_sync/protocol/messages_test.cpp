// Control messages: what is written reads back the same, and foreign bytes decode to nothing else.

#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/topology.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cstring>
#include <map>
#include <string>

#include "isthmus/base/random.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::protocol {
namespace {

Digest digest(std::uint8_t first) {
  Digest out;
  for (auto& byte : out.bytes) byte = first++;
  return out;
}

MemberInfo member(const std::string& name) {
  return {name, 7, name + ".example:7000", 3, MemberKind::reducer};
}

/// A set of nine chunks that holds the first and the last.
ChunkSet some_chunks() {
  ChunkSet chunks(9);
  chunks.add(0);
  chunks.add(8);
  return chunks;
}

Settings some_settings() {
  return {{{90, {{"outer.sync_every", "60"}}}, {120, {{"outer.optimizer.lr", "0.5"}}}}, 130};
}

/// One message of each type, every field different from its default.
std::vector<ControlMessage> one_of_each() {
  return {
      Hello{.protocol = protocol_version,
            .oldest = 3,
            .numerics = 6,
            .run = "run-1",
            .member = member("us-1"),
            .build = "0.1.0-abc",
            .config = {{"outer.sync_every", "30"}, {"outer.codec", "int4"}},
            .model = digest(1),
            .tokenizer = digest(2),
            .resume = true,
            .checkpoints = {{100, 1}, {200, 2}},
            .sealed = 9,
            .activated = 8,
            .token = digest(9),
            .done = true,
            .uplink = 6'250'000,
            .fresh = false,
            .site = "us",
            .settings = some_settings(),
            .calendar = "sat closed"},
      Refused{"no"},
      Seal{3, 400},
      Sealed{.view = 3,
             .activated = 2,
             .layout = {{0, 640}, {640, 100}},
             .chunk_elements = 128,
             .fragments = {{2, digest(3)}, {1, digest(4)}},
             .history = {{{1, digest(8)}}, {}},
             .held = {{1, 2, some_chunks(), {{7, {0, 8, 12}}, {8, {1, 0, 4}}}, {7, 8, 9}}},
             .step = 77,
             .parameters = digest(5),
             .settings = some_settings(),
             .reach = 81},
      NewView{.view = {4, {member("eu-1"), member("us-1")}, {0, 1, 1}},
              .token = digest(6),
              .layout = {{0, 640}, {640, 100}},
              .chunk_elements = 128,
              .reference = 3,
              .step = 78,
              .chains = {{{1, digest(8)}, {2, digest(3)}}, {{1, digest(4)}}},
              .fixed = {{1, 2, {{1, some_chunks()}}}},
              .applied = {{2, 1}, {1, 1}},
              .settings = some_settings()},
      Heartbeat{.number = 11,
                .view = 4,
                .step = 12,
                .contributed = 2,
                .unreachable = {5, 6},
                .loss = 3.5,
                .tokens_per_second = 1e5,
                .utilization = 0.75,
                .bytes_sent = 1ULL << 40,
                .uplink = 7'250'000,
                .inner_steps_per_second = 12.5,
                .fragments = {{9, 0x1122334455667788ULL}, {8, 1}},
                .health = {{1, 9, 3, 2.5, {{7, 3, 1.5, -0.5}}}},
                .paths = {{5, 90'000, 80'000, 7'000'000}, {6, 1, 2, 3}},
                .relays = 3,
                .relayed = {5},
                .checkpoints = {{100, 1}, {200, 2}},
                .digests = {{1, 16, 7}},
                .outer_gain = 2.5,
                .outer_correlation = -0.25},
      HeartbeatReply{4, 11, {7, 6}, {9, 8}, 5'000'000, 10.5, 200},
      EvalReport{100, 1234.5, 4096},
      Announce{"10.0.0.1:29500"},
      StopRequest{"interrupted"},
      Hold{},
      Held{17},
      StopAt{18},
      Done{R"({"loss": 2.5})", digest(7)},
      Finished{"hashes differ", digest(5)},
      Leave{"out of memory"},
      Abort{"us-1 is lost"},
      Admitted{digest(6), {member("eu-1"), member("us-1")}, some_settings()},
      Ready{},
      Evicted{"too far behind"},
      Suspended{"1 of at least 2 replicas are here"},
      Relays{7, {{1, 2, 3}, {4, 5, 6}}},
      Command{protocol_version, "run-1", "operator-anna", "set", {"outer.sync_every=60"}, 400, "eu"},
      Answer{"no such key", "{}"},
      Adjust{{{"network.rate", "40Mbps"}}},
      Steered{some_settings()},
      Drain{"asked to by operator"},
      Records{7, {{RecordKind::log, "member 1 of 2"}, {RecordKind::metrics, "{}"}}},
      RecordsTaken{9},
      CheckpointRequest{"asked to leave"},
      CheckpointAt{12},
      CalendarChanged{"mon 8:00-18:00 20Mbps"},
  };
}

std::string kind(const ControlMessage& message) {
  return "message of tag " + std::to_string(message.index());
}

/// Whether the bytes are a message; fails the test if decoding throws anything but Error(network).
bool decodes(std::span<const std::byte> bytes) {
  try {
    const auto message = decode_control(bytes);
    static_cast<void>(encode(message));
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::network) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "bytes from strangers must give Error(network), not " << error.what();
  }
  return false;
}

/// Peak memory of this process, in KiB.
long peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Messages, EveryOneRoundTrips) {
  const auto all = one_of_each();
  ASSERT_EQ(all.size(), std::variant_size_v<ControlMessage>) << "give the new message an example here";
  for (std::size_t tag = 0; tag < all.size(); ++tag) {
    ASSERT_EQ(all[tag].index(), tag) << "tags are the wire format: append new messages, never reorder";
    const auto bytes = encode(all[tag]);
    const auto back = decode_control(bytes);
    EXPECT_EQ(back.index(), tag);
    EXPECT_EQ(encode(back), bytes) << kind(all[tag]) << ": a field is lost or changed by encoding";
  }
}

TEST(Messages, FieldsLandWhereTheyCameFrom) {
  const auto all = one_of_each();
  const auto hello = std::get<Hello>(decode_control(encode(all[0])));
  EXPECT_EQ(hello.protocol, protocol_version);
  EXPECT_EQ(hello.numerics, 6U);
  EXPECT_EQ(hello.run, "run-1");
  EXPECT_EQ(hello.member.name, "us-1");
  EXPECT_EQ(hello.member.incarnation, 7U);
  EXPECT_EQ(hello.member.address, "us-1.example:7000");
  EXPECT_EQ(hello.build, "0.1.0-abc");
  EXPECT_EQ(hello.config[1], (std::pair<std::string, std::string>{"outer.codec", "int4"}));
  EXPECT_EQ(hello.model, digest(1));
  EXPECT_EQ(hello.tokenizer, digest(2));
  EXPECT_TRUE(hello.resume);
  EXPECT_THAT(hello.checkpoints, testing::ElementsAre(CheckpointId{100, 1}, CheckpointId{200, 2}));
  EXPECT_EQ(hello.member.slot, 3U);
  EXPECT_EQ(hello.sealed, 9U);
  EXPECT_EQ(hello.activated, 8U);
  EXPECT_EQ(hello.token, digest(9));
  EXPECT_TRUE(hello.done);

  const auto sealed = std::get<Sealed>(decode_control(encode(all[3])));
  EXPECT_THAT(sealed.layout, testing::ElementsAre(Range{0, 640}, Range{640, 100}));
  EXPECT_EQ(sealed.chunk_elements, 128U);
  EXPECT_EQ(sealed.fragments[0], (FragmentState{2, digest(3)}));
  EXPECT_EQ(sealed.parameters, digest(5));
  EXPECT_EQ(sealed.activated, 2U);
  EXPECT_EQ(sealed.history[0][0], (FragmentState{1, digest(8)}));
  EXPECT_EQ(sealed.held[0].round, 2U);
  EXPECT_TRUE(sealed.held[0].chunks.has(0) && sealed.held[0].chunks.has(8));
  EXPECT_FALSE(sealed.held[0].chunks.has(1) || sealed.held[0].chunks.has(9) ||
               sealed.held[0].chunks.has(1000));

  const auto view = std::get<NewView>(decode_control(encode(all[4])));
  EXPECT_EQ(view.view.number, 4U);
  EXPECT_EQ(view.view.members[1].name, "us-1");
  EXPECT_THAT(view.view.owners, testing::ElementsAre(0, 1, 1));
  EXPECT_EQ(view.token, digest(6));
  EXPECT_EQ(view.reference, 3U);
  EXPECT_EQ(view.step, 78U);
  EXPECT_EQ(view.chains[0][1], (FragmentState{2, digest(3)}));
  EXPECT_EQ(view.fixed[0].holders[0].first, 1U);
  EXPECT_TRUE(view.fixed[0].holders[0].second.has(8));
  EXPECT_THAT(view.applied[0], testing::ElementsAre(2, 1));

  const auto beat = std::get<Heartbeat>(decode_control(encode(all[5])));
  EXPECT_EQ(beat.step, 12U);
  EXPECT_EQ(beat.loss, 3.5);
  EXPECT_EQ(beat.bytes_sent, 1ULL << 40);
  EXPECT_EQ(beat.fragments[0].second, 0x1122334455667788ULL);
  EXPECT_EQ(beat.view, 4U);
  EXPECT_EQ(beat.inner_steps_per_second, 12.5);
  EXPECT_THAT(beat.unreachable, testing::ElementsAre(5, 6));
  ASSERT_EQ(beat.paths.size(), 2U);
  EXPECT_EQ(beat.paths[0].peer, 5U);
  EXPECT_EQ(beat.paths[0].round_trip, 90'000U);
  EXPECT_EQ(beat.paths[0].shortest, 80'000U);
  EXPECT_EQ(beat.paths[0].bytes_per_second, 7'000'000U);

  const auto reply = std::get<HeartbeatReply>(decode_control(encode(all[6])));
  EXPECT_EQ(reply.view, 4U);
  EXPECT_EQ(reply.number, 11U);
  EXPECT_THAT(reply.lowest, testing::ElementsAre(7, 6));
  EXPECT_THAT(reply.newest, testing::ElementsAre(9, 8));
  EXPECT_EQ(reply.lease, 5'000'000U);
  EXPECT_EQ(reply.inner_steps_per_second, 10.5);
}

TEST(Messages, APathCostsAHeartbeatLittle) {
  Heartbeat beat;
  const auto without = encode(beat).size();
  beat.paths.resize(10);
  EXPECT_LE(encode(beat).size(), without + 10 * 32);
}

TEST(Messages, CutShortAnywhereIsRefused) {
  for (const auto& message : one_of_each()) {
    const auto bytes = encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(decodes(std::span(bytes).first(length)))
          << kind(message) << " cut after " << length << " of " << bytes.size() << " bytes";
    }
  }
}

TEST(Messages, BytesLeftOverAreRefused) {
  for (const auto& message : one_of_each()) {
    auto bytes = encode(message);
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decodes(bytes)) << kind(message);
  }
}

TEST(Messages, UnknownTagsAreRefused) {
  for (int tag = static_cast<int>(std::variant_size_v<ControlMessage>); tag < 256; ++tag) {
    EXPECT_FALSE(decodes(Bytes(40, static_cast<std::byte>(tag)))) << "tag " << tag;
  }
}

TEST(Messages, HugeCountsAreNotBelieved) {
  const auto before = peak_memory();
  for (const auto& message : one_of_each()) {
    const auto good = encode(message);
    for (std::size_t at = 1; at + 4 <= good.size(); ++at) {
      auto bytes = good;
      std::memset(bytes.data() + at, 0xff, 4);
      static_cast<void>(decodes(bytes));
    }
  }
  EXPECT_LT(peak_memory() - before, 64 * 1024)
      << "KiB: memory was allocated for what a message merely claims";
}

TEST(Messages, RandomBytesGiveErrorsAndNothingElse) {
  const auto before = peak_memory();
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Bytes bytes(random_bits(1, seed, 0) % 300);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(random_bits(2, seed, i) % (seed % 2 == 0 ? 256 : 3));
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(seed % std::variant_size_v<ControlMessage>);
    SCOPED_TRACE("seed " + std::to_string(seed));
    static_cast<void>(decodes(bytes));
  }
  EXPECT_LT(peak_memory() - before, 64 * 1024) << "KiB";
}

TEST(Messages, DamagedMessagesGiveErrorsAndNothingElse) {
  for (const auto& message : one_of_each()) {
    const auto good = encode(message);
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const auto flip : {0x01, 0x80, 0xff}) {
        auto bytes = good;
        bytes[at] ^= static_cast<std::byte>(flip);
        static_cast<void>(decodes(bytes));
      }
    }
  }
}

// ---- replica ids ----

TEST(ReplicaIds, AreOfNameAndIncarnation) {
  // SHA-256 of "us-1", a zero byte and 7 as eight bytes begins with these bytes.
  EXPECT_EQ(id_of({"us-1", 7, "us-1.example:7000", 0}), 0x5c74bd361477f0e6U);
  EXPECT_EQ(id_of({"us-1", 7, "elsewhere:7000", 0}), id_of({"us-1", 7, "", 1}))
      << "address and slot may change";
  EXPECT_NE(id_of({"us-1", 7, "", 0}), id_of({"us-1", 8, "", 0})) << "restarted, it is another replica";
  EXPECT_NE(id_of({"us-1", 7, "", 0}), id_of({"us-2", 7, "", 0}));
}

// ---- chunks on the wire ----

TEST(Frames, ChunkHeadersHaveTheirPlacesOnTheWire) {
  const ChunkKey key{
      .round = 0x0807060504030201, .chunk = 0x14131211, .sender = 0x2221, .kind = ChunkKind::result};
  const ChunkMessage message{.view = 0x3837363534333231,
                             .key = key,
                             .bytes = nullptr,
                             .weight = 0x4847464544434241,
                             .contributors = {5, 6, 7},
                             .norms = {{5, 1}, {6, 2}}};
  const auto header = transport::header_of(message, quant::Lossless::zstd);
  const unsigned char expected[] = {
      0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,  // view
      1,    2,    3,    4,    5,    6,    7,    8,     // round
      0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,  // weight
      0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 3,    0,     // chunk, sender, contributors
      2,    1,    2,    0,    0,    0,    0,    0};    // kind, packing, norms
  EXPECT_EQ(std::memcmp(&header, expected, sizeof expected), 0) << "docs/protocol.md documents this layout";
  EXPECT_EQ(transport::key_of(header), key);
  EXPECT_EQ(transport::header_of(1, key).packing, 0);
  EXPECT_EQ(transport::header_of(1, key).norms, 0);
}

TEST(Frames, FrameHeadersHaveTheirPlacesOnTheWire) {
  const transport::FrameHeader header{.type = transport::FrameType::ack, .length = 0x04030201};
  const unsigned char expected[] = {'I', 'S', 'T', 'H', 4, 0, 0, 0, 1, 2, 3, 4};
  EXPECT_EQ(std::memcmp(&header, expected, sizeof expected), 0) << "docs/protocol.md documents this layout";
}

// ---- owners ----

TEST(BalancedOwners, EachFragmentIsSharedOutThenAll) {
  // Chunks of 4 elements: fragment 0 has 4 4 2, fragment 1 has 4 1. In fragment 0, member 0 of two gets the
  // first chunk and, since both have 4 elements then, the third; in fragment 1, member 1 has fewer in total
  // and comes first.
  const FragmentLayout layout({{0, 10}, {10, 5}}, 4);
  EXPECT_THAT(balanced_owners(layout, 2), testing::ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(balanced_owners(layout, 1), testing::Each(0));
}

TEST(BalancedOwners, SharesDifferByAtMostOneChunk) {
  for (std::size_t members = 1; members <= 7; ++members) {
    const FragmentLayout layout({{0, 1000}, {1000, 333}, {1400, 4096}}, 64);
    std::map<MemberIndex, std::uint64_t> elements;
    const auto owners = balanced_owners(layout, members);
    ASSERT_EQ(owners.size(), layout.chunk_count());
    for (ChunkId k = 0; k < owners.size(); ++k) elements[owners[k]] += layout.chunk(k).size;
    std::uint64_t least = UINT64_MAX;
    std::uint64_t most = 0;
    for (const auto& [owner, n] : elements) {
      EXPECT_LT(owner, members);
      least = std::min(least, n);
      most = std::max(most, n);
    }
    EXPECT_EQ(elements.size(), members);
    EXPECT_LE(most - least, 2 * 64U) << members << " members";
  }
}

TEST(Hello, OfAnotherProtocolIsReadAsFarAsItMustBe) {
  Hello newer;
  newer.protocol = protocol_version + 3;
  newer.oldest = protocol_version + 1;
  newer.run = "run-1";
  newer.build = "1.0-def";
  newer.member.name = "us-1";
  auto bytes = encode(newer);
  bytes.resize(bytes.size() - 20);  // the rest of the message may have changed by then
  const auto message = decode_control(bytes);
  const auto& read = std::get<Hello>(message);
  EXPECT_EQ(read.protocol, protocol_version + 3);
  EXPECT_EQ(read.member.name, "us-1");
  EXPECT_EQ(read.build, "1.0-def");
  EXPECT_FALSE(speaks_with(read));
}

TEST(Hello, OfANewerProtocolThatSpeaksThisOneIsTaken) {
  Hello newer;
  newer.protocol = protocol_version + 1;
  newer.oldest = protocol_version;
  newer.run = "run-1";
  newer.config = {{"outer.codec", "int4"}};
  auto bytes = encode(newer);
  bytes.resize(bytes.size() + 8);  // a field unknown here
  const auto message = decode_control(bytes);
  EXPECT_TRUE(speaks_with(std::get<Hello>(message)));
  EXPECT_EQ(std::get<Hello>(message).config, newer.config);
}

TEST(Hello, OfAnOlderProtocolNamesItsBuild) {
  BinaryWriter old;  // how a Hello of protocol 6 began
  old(std::uint8_t{0}, std::uint32_t{6}, numerics_version, std::string("run-1"), member("eu-1"),
      std::string("0.1.0-abc"), std::string("and more"));
  const auto message = decode_control(old.take());
  EXPECT_FALSE(speaks_with(std::get<Hello>(message)));
  EXPECT_EQ(std::get<Hello>(message).build, "0.1.0-abc");
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
