// Tests of the forwarder's parts without devices, clocks or sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <numeric>

#include "link.h"
#include "nat.h"
#include "packet.h"

namespace isthmus::wan_lab {
namespace {

constexpr Nanoseconds ms = 1'000'000;

std::vector<Run> send(Link& link, Nanoseconds now, Burst burst) {
  std::vector<Run> runs;
  link.send(now, burst, runs);
  return runs;
}

Link link_of(const LinkSettings& settings, std::uint64_t seed = 1) {
  Link link(seed);
  link.set(settings);
  return link;
}

TEST(LinkTest, APacketArrivesAfterItsSerialisationAndTheDelay) {
  auto link = link_of({.bits_per_second = 12'000'000, .delay = 50 * ms});
  const auto runs = send(link, 7 * ms, {1, 1500, 1500});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].arrival, 7 * ms + 1 * ms + 50 * ms);
  EXPECT_EQ(runs[0].bytes, 1500u);
}

TEST(LinkTest, ABurstTakesAsLongAsItsPacketsOnTheWireAndTheNextOneWaits) {
  auto link = link_of({.bits_per_second = 12'000'000});
  const auto first = send(link, 0, {3, 1500, 750});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].count, 3u);
  EXPECT_EQ(first[0].arrival, 2 * ms + ms / 2);
  EXPECT_EQ(send(link, 0, {1, 1500, 1500})[0].arrival, 3 * ms + ms / 2);
  EXPECT_EQ(link.backlog(0), 3 * ms + ms / 2);
  EXPECT_EQ(link.backlog(10 * ms), 0);
}

TEST(LinkTest, AThousandPacketsTakeExactlyTheirTimeAtAnOddRate) {
  auto link = link_of({.bits_per_second = 7'777'777, .queue = 10'000 * ms});
  Nanoseconds last = 0;
  for (int i = 0; i < 1000; ++i) last = send(link, 0, {1, 1499, 1499})[0].arrival;
  EXPECT_NEAR(static_cast<double>(last), 1000 * 1499 * 8 / 7'777'777.0 * 1e9,
              500);  // rounding: half a nanosecond each
}

TEST(LinkTest, TheQueueDropsTheTailOfABurstThatWouldWaitTooLong) {
  auto link = link_of({.bits_per_second = 12'000'000, .queue = 2 * ms});
  const auto runs = send(link, 0, {10, 1500, 1500});  // waiting times 0, 1, 2, 3, ... ms
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].first, 0u);
  EXPECT_EQ(runs[0].count, 3u);
  EXPECT_EQ(runs[0].arrival, 3 * ms);
  EXPECT_EQ(link.counters.queue_drops.packets, 7u);
  EXPECT_EQ(link.counters.queue_drops.bytes, 7u * 1500);
  EXPECT_EQ(send(link, ms, {2, 1500, 1500})[0].count, 1u) << "one packet has left, so there is room for one";
}

TEST(LinkTest, AQueueInBytesIsTheSameAtAnyRate) {
  for (const std::uint64_t rate : {1'000'000u, 1'000'000'000u}) {
    auto link = link_of({.bits_per_second = rate, .queue = 0, .queue_bytes = 3000});
    EXPECT_EQ(send(link, 0, {10, 1500, 1500})[0].count, 3u)
        << "one on the link and two in the queue, at " << rate;
  }
}

TEST(LinkTest, LossIsTheFractionAskedForAndComesAgainWithTheSeed) {
  const auto lost = [](std::uint64_t seed) {
    auto link = link_of({.bits_per_second = 1'000'000'000'000, .loss = 0.01}, seed);
    std::vector<bool> arrived;
    for (int i = 0; i < 100'000; ++i) arrived.push_back(!send(link, i * ms, {1, 1500, 1500}).empty());
    EXPECT_EQ(link.counters.losses.packets, std::accumulate(arrived.begin(), arrived.end(), 100'000u,
                                                            [](unsigned n, bool a) { return n - a; }));
    return std::pair(arrived, link.counters.losses.packets);
  };
  const auto a = lost(1), again = lost(1), other = lost(2);
  EXPECT_NEAR(static_cast<double>(a.second), 1000, 5 * 31.5);  // five standard deviations
  EXPECT_EQ(a.first, again.first);
  EXPECT_NE(a.first, other.first);
}

TEST(LinkTest, LossIsOfPacketsOnTheWireNotOfBursts) {
  auto link = link_of({.bits_per_second = 1'000'000'000'000, .loss = 0.01});
  std::uint64_t arrived = 0;
  for (int i = 0; i < 2500; ++i) {
    for (const auto& run : send(link, i * ms, {40, 1500, 1500})) arrived += run.count;
  }
  EXPECT_EQ(arrived + link.counters.losses.packets, 100'000u);
  EXPECT_NEAR(static_cast<double>(link.counters.losses.packets), 1000, 5 * 31.5);
}

TEST(LinkTest, LossOfOneLosesAllAndOfNoneNothing) {
  auto all = link_of({.loss = 1});
  EXPECT_TRUE(send(all, 0, {40, 1500, 1500}).empty());
  auto none = link_of({.loss = 0});
  EXPECT_EQ(send(none, 0, {40, 1500, 1500}).size(), 1u);
}

TEST(LinkTest, WhatIsLostHasTakenItsTime) {
  auto link = link_of({.bits_per_second = 12'000'000, .loss = 1});
  send(link, 0, {4, 1500, 1500});
  EXPECT_EQ(link.backlog(0), 4 * ms);
}

TEST(LinkTest, JitterStaysInItsRangeUsesItAndKeepsTheOrder) {
  auto link = link_of({.bits_per_second = 1'000'000'000'000, .delay = 10 * ms, .jitter = 5 * ms});
  Nanoseconds last = 0, least = 100 * ms, most = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Nanoseconds now = i * (ms / 10);
    const auto arrival = send(link, now, {1, 100, 100})[0].arrival;
    EXPECT_GT(arrival, last);
    last = arrival;
    least = std::min(least, arrival - now);
    most = std::max(most, arrival - now);
  }
  EXPECT_GE(least, 10 * ms);
  EXPECT_LE(most, 15 * ms + 1);
  EXPECT_GT(most - least, 4 * ms);
}

TEST(LinkTest, AShorterDelayDoesNotOvertake) {
  auto link = link_of({.delay = 100 * ms});
  const auto before = send(link, 0, {1, 1500, 1500})[0].arrival;
  link.set({.delay = 1 * ms});
  EXPECT_EQ(send(link, ms, {1, 1500, 1500})[0].arrival, before);
}

TEST(LinkTest, ACutLinkDropsWhatEntersAndAHealedOneGoesOn) {
  LinkSettings settings{.cut = true};
  auto link = link_of(settings);
  EXPECT_TRUE(send(link, 0, {3, 1500, 100}).empty());
  EXPECT_EQ(link.counters.cut_drops.packets, 3u);
  EXPECT_EQ(link.counters.cut_drops.bytes, 3100u);
  settings.cut = false;
  link.set(settings);
  EXPECT_EQ(send(link, 0, {1, 1500, 1500}).size(), 1u);
}

// --- Packets
// ----------------------------------------------------------------------------------------------------------

constexpr std::size_t tcp_bytes = 32;  // with timestamps
constexpr std::uint16_t mss = 1448;

void put(Bytes& raw, std::size_t at, std::initializer_list<int> values) {
  for (const int value : values) raw[device_header + at++] = static_cast<std::byte>(value);
}

int get(const Bytes& raw, std::size_t at) { return std::to_integer<int>(raw[device_header + at]); }
int get16(const Bytes& raw, std::size_t at) { return get(raw, at) << 8 | get(raw, at + 1); }
std::int64_t get32(const Bytes& raw, std::size_t at) {
  return std::int64_t{get16(raw, at)} << 16 | get16(raw, at + 2);
}

DeviceHeader header_of(const Bytes& raw) {
  DeviceHeader header;
  std::memcpy(&header, raw.data(), sizeof header);
  return header;
}

// A burst in the kernel's form, with FIN, PSH, CWR and ACK set; byte i of the payload is i mod 251.
Bytes tcp_burst(int version, std::size_t payload) {
  const std::size_t ip = version == 4 ? 20 : 40, length = ip + tcp_bytes + payload;
  Bytes raw(device_header + length);
  const DeviceHeader header{
      needs_checksum, version == 4 ? gso_tcp4 : gso_tcp6, 0, mss, static_cast<std::uint16_t>(ip), 16};
  std::memcpy(raw.data(), &header, sizeof header);
  const auto high = [](std::size_t n) { return static_cast<int>(n >> 8); };
  const auto low = [](std::size_t n) { return static_cast<int>(n & 0xff); };
  if (version == 4) {
    put(raw, 0, {0x45, 0, high(length), low(length), 0xff, 0xff, 0x40, 0, 64, IPPROTO_TCP, 0, 0});
    put(raw, 12, {10, 77, 0, 1, 10, 77, 0, 2});
  } else {
    put(raw, 0, {0x60, 0, 0, 0, high(length - ip), low(length - ip), IPPROTO_TCP, 64});
    put(raw, 8, {0xfd, 0x77}), put(raw, 23, {1}), put(raw, 24, {0xfd, 0x77}), put(raw, 39, {2});
  }
  put(raw, ip, {0x12, 0x34, 0x56, 0x78, 0xff, 0xff, 0xff, 0x00, 0, 0, 0, 0, 0x80, 0x99});
  for (std::size_t i = 0; i < payload; ++i) put(raw, ip + tcp_bytes + i, {static_cast<int>(i % 251)});
  return raw;
}

int folded_sum16(const Bytes& raw, std::size_t from, std::size_t to) {
  int sum = 0;
  for (auto i = from; i < to; i += 2) sum += get16(raw, i);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

class BurstTest : public testing::TestWithParam<int> {
 protected:
  int version = GetParam();
  std::size_t ip = version == 4 ? 20 : 40;
  Bytes raw = tcp_burst(version, 5 * mss + 100);
  Packet packet = parse(raw).value();
};

TEST_P(BurstTest, CountsThePacketsOnTheWire) {
  EXPECT_EQ(packet.burst.count, 6u);
  EXPECT_EQ(packet.burst.bytes, ip + tcp_bytes + mss);
  EXPECT_EQ(packet.burst.last_bytes, ip + tcp_bytes + 100);
  EXPECT_EQ(packet.source_port, 0x1234);
  EXPECT_EQ(packet.destination_port, 0x5678);
}

TEST_P(BurstTest, TheWholeIsItself) { EXPECT_EQ(cut_out(raw, packet, 0, 6), raw); }

TEST_P(BurstTest, APartHasItsOwnHeadersAndPayload) {
  const auto part = cut_out(raw, packet, 2, 3);
  const auto read = parse(part).value();
  EXPECT_EQ(read.burst.count, 3u);
  EXPECT_EQ(read.burst.last_bytes, read.burst.bytes);
  EXPECT_EQ(get32(part, ip + 4), (0xffffff00 + 2 * mss) % (std::int64_t{1} << 32)) << "sequence numbers wrap";
  EXPECT_EQ(get(part, ip + 13), 0x10) << "FIN and PSH belong to the last packet, CWR to the first";
  EXPECT_EQ(get(part, ip + tcp_bytes), 2 * mss % 251);
  EXPECT_EQ(get16(part, ip + 16), [&] {
    const int length = static_cast<int>(tcp_bytes + 3 * mss) + IPPROTO_TCP;
    const int sum = folded_sum16(part, version == 4 ? 12 : 8, ip) + length;
    return (sum & 0xffff) + (sum >> 16);
  }());
  if (version == 4) {
    EXPECT_EQ(get16(part, 4), (0xffff + 2) & 0xffff) << "identification";
    EXPECT_EQ(folded_sum16(part, 0, 20), 0xffff) << "checksum of the header";
  }
}

TEST_P(BurstTest, TheFirstAndTheLastPacketKeepTheirFlags) {
  EXPECT_EQ(get(cut_out(raw, packet, 0, 2), ip + 13), 0x90);
  EXPECT_EQ(get(cut_out(raw, packet, 4, 2), ip + 13), 0x19);
}

TEST_P(BurstTest, OnePacketIsNoBurst) {
  const auto last = cut_out(raw, packet, 5, 1);
  EXPECT_EQ(last.size(), device_header + packet.burst.last_bytes);
  EXPECT_EQ(header_of(last).gso_type, gso_none);
  EXPECT_EQ(header_of(last).flags, needs_checksum);
  EXPECT_EQ(parse(last).value().burst.count, 1u);
}

TEST_P(BurstTest, UnsoundPacketsAreNone) {
  for (const auto size :
       {std::size_t{0}, device_header, device_header + 19, device_header + ip, raw.size() - 1}) {
    EXPECT_FALSE(parse(std::span(raw).first(size))) << size;
  }
  auto bad = raw;
  put(bad, ip + 12, {0x10});  // a TCP header length of 4 bytes
  EXPECT_FALSE(parse(bad));
  bad = raw;
  put(bad, 0, {0x50});
  EXPECT_FALSE(parse(bad));
}

INSTANTIATE_TEST_SUITE_P(Versions, BurstTest, testing::Values(4, 6));

// --- NAT
// --------------------------------------------------------------------------------------------------------------

Packet datagram(int from, int from_port, int to, int to_port) {
  Packet packet{};
  packet.version = 4;
  packet.protocol = IPPROTO_UDP;
  packet.source = {10, 77, 0, static_cast<std::uint8_t>(from)};
  packet.destination = {10, 77, 0, static_cast<std::uint8_t>(to)};
  packet.source_port = static_cast<std::uint16_t>(from_port);
  packet.destination_port = static_cast<std::uint16_t>(to_port);
  return packet;
}

TEST(NatTest, LetsInAnswersAndNothingElse) {
  Nat nat(100);
  EXPECT_FALSE(nat.inbound(0, datagram(2, 9, 1, 5)));
  nat.outbound(0, datagram(1, 5, 2, 9));
  EXPECT_TRUE(nat.inbound(1, datagram(2, 9, 1, 5)));
  EXPECT_FALSE(nat.inbound(1, datagram(2, 8, 1, 5))) << "another port of the peer";
  EXPECT_FALSE(nat.inbound(1, datagram(3, 9, 1, 5))) << "another peer";
  EXPECT_FALSE(nat.inbound(1, datagram(2, 9, 1, 6))) << "another own port";
  auto tcp = datagram(2, 9, 1, 5);
  tcp.protocol = IPPROTO_TCP;
  EXPECT_FALSE(nat.inbound(1, tcp));
}

TEST(NatTest, ForgetsAFlowThatRestsAndKeepsOneThatIsUsed) {
  Nat nat(100);
  nat.outbound(0, datagram(1, 5, 2, 9));
  EXPECT_TRUE(nat.inbound(90, datagram(2, 9, 1, 5)));
  EXPECT_TRUE(nat.inbound(180, datagram(2, 9, 1, 5)));
  EXPECT_FALSE(nat.inbound(281, datagram(2, 9, 1, 5)));
}

TEST(NatTest, ManyFlowsDoNotPushOutOneThatIsUsed) {
  Nat nat(100);
  for (int i = 0; i < 5000; ++i) nat.outbound(i, datagram(1, i, 2, 9));
  EXPECT_TRUE(nat.inbound(5000, datagram(2, 9, 1, 4999)));
  EXPECT_FALSE(nat.inbound(5000, datagram(2, 9, 1, 0)));
}

}  // namespace
}  // namespace isthmus::wan_lab
