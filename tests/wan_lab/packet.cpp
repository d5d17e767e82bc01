#include "packet.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace isthmus::wan_lab {
namespace {

constexpr std::size_t ipv4_header = 20, ipv6_header = 40, tcp_header = 20;
constexpr std::byte fin{0x01}, psh{0x08}, cwr{0x80};

std::uint8_t u8(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

std::uint32_t u16(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(u8(bytes, at)) << 8 | u8(bytes, at + 1);
}

std::uint32_t u32(std::span<const std::byte> bytes, std::size_t at) {
  return u16(bytes, at) << 16 | u16(bytes, at + 2);
}

void put16(std::span<std::byte> bytes, std::size_t at, std::uint32_t value) {
  bytes[at] = static_cast<std::byte>(value >> 8 & 0xff);
  bytes[at + 1] = static_cast<std::byte>(value & 0xff);
}

void put32(std::span<std::byte> bytes, std::size_t at, std::uint32_t value) {
  put16(bytes, at, value >> 16);
  put16(bytes, at + 2, value & 0xffff);
}

// The Internet checksum's sum without the complement (RFC 1071), for an even number of bytes.
std::uint32_t sum16(std::span<const std::byte> bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) sum += u16(bytes, i);
  return sum;
}

std::uint32_t fold(std::uint32_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

DeviceHeader device_header_of(std::span<const std::byte> raw) {
  DeviceHeader header;
  std::memcpy(&header, raw.data(), sizeof header);
  return header;
}

void copy_address(std::span<const std::byte> from, Address& to) {
  std::memcpy(to.data(), from.data(), from.size());
}

void read_transport(std::span<const std::byte> ip, std::size_t at, Packet& packet) {
  const auto protocol = packet.protocol;
  if (packet.later_fragment) return;
  if ((protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) && ip.size() >= at + 4) {
    packet.source_port = static_cast<std::uint16_t>(u16(ip, at));
    packet.destination_port = static_cast<std::uint16_t>(u16(ip, at + 2));
  }
  if (ip.size() <= at) return;
  if (protocol == IPPROTO_ICMPV6) packet.icmp_error = u8(ip, at) < 128;
  if (protocol == IPPROTO_ICMP) packet.icmp_error = u8(ip, at) == 3 || u8(ip, at) == 11 || u8(ip, at) == 12;
}

bool read_ipv4(std::span<const std::byte> ip, Packet& packet) {
  const std::size_t header = (u8(ip, 0) & 0x0fu) * 4;
  if (header < ipv4_header || ip.size() < header || u16(ip, 2) != ip.size()) return false;
  packet.protocol = u8(ip, 9);
  packet.later_fragment = (u16(ip, 6) & 0x1fff) != 0;
  copy_address(ip.subspan(12, 4), packet.source);
  copy_address(ip.subspan(16, 4), packet.destination);
  read_transport(ip, header, packet);
  return true;
}

bool read_ipv6(std::span<const std::byte> ip, Packet& packet) {
  if (ip.size() < ipv6_header || u16(ip, 4) + ipv6_header != ip.size()) return false;
  packet.protocol = u8(ip, 6);
  std::size_t at = ipv6_header;
  if (packet.protocol == IPPROTO_FRAGMENT) {
    if (ip.size() < at + 8) return false;
    packet.protocol = u8(ip, at);
    packet.later_fragment = (u16(ip, at + 2) & 0xfff8) != 0;
    at += 8;
  }
  copy_address(ip.subspan(8, 16), packet.source);
  copy_address(ip.subspan(24, 16), packet.destination);
  read_transport(ip, at, packet);
  return true;
}

// The kernel leaves the TCP checksum to the device; checksum_start is therefore the offset of the TCP header.
bool read_burst(std::span<const std::byte> ip, const DeviceHeader& header, Packet& packet) {
  const auto size = static_cast<std::uint32_t>(ip.size());
  packet.burst = {1, size, size};
  if (header.gso_type == gso_none) return true;
  const bool tcp = header.gso_type == gso_tcp4 || header.gso_type == gso_tcp6;
  const std::size_t at = header.checksum_start;
  if (!tcp || !(header.flags & needs_checksum) || header.gso_size == 0) return false;
  if (at < ipv4_header || ip.size() < at + tcp_header) return false;
  packet.headers = at + (u8(ip, at + 12) >> 4) * 4u;
  if (packet.headers < at + tcp_header || ip.size() <= packet.headers) return false;
  const auto payload = static_cast<std::uint32_t>(ip.size() - packet.headers);
  const auto headers = static_cast<std::uint32_t>(packet.headers);
  const auto count = (payload + header.gso_size - 1) / header.gso_size;
  packet.burst = {count, headers + header.gso_size, headers + payload - (count - 1) * header.gso_size};
  return true;
}

void mend_ip_header(std::span<std::byte> ip, int version, std::uint32_t first) {
  if (version == 6) return put16(ip, 4, static_cast<std::uint32_t>(ip.size() - ipv6_header));
  put16(ip, 2, static_cast<std::uint32_t>(ip.size()));
  put16(ip, 4, u16(ip, 4) + first);  // the identification increases with each packet
  put16(ip, 10, 0);
  put16(ip, 10, ~fold(sum16(ip.first((u8(ip, 0) & 0x0fu) * 4))));
}

// The value that the kernel leaves in the checksum field for the device: the sum of the pseudo-header.
std::uint32_t pseudo_header_sum(std::span<const std::byte> ip, int version, std::size_t tcp_at) {
  const auto addresses = version == 4 ? ip.subspan(12, 8) : ip.subspan(8, 32);
  return fold(sum16(addresses) + IPPROTO_TCP + static_cast<std::uint32_t>(ip.size() - tcp_at));
}

}  // namespace

std::optional<Packet> parse(std::span<const std::byte> raw) {
  if (raw.size() < device_header + ipv4_header) return {};
  const auto ip = raw.subspan(device_header);
  Packet packet{};
  packet.version = u8(ip, 0) >> 4;
  const bool sound = packet.version == 4   ? read_ipv4(ip, packet)
                     : packet.version == 6 ? read_ipv6(ip, packet)
                                           : false;
  if (!sound || !read_burst(ip, device_header_of(raw), packet)) return {};
  return packet;
}

Bytes cut_out(std::span<const std::byte> raw, const Packet& packet, std::uint32_t first,
              std::uint32_t count) {
  if (count == packet.burst.count) return {raw.begin(), raw.end()};
  auto header = device_header_of(raw);
  const auto prefix = device_header + packet.headers;
  const auto payload = raw.subspan(prefix);
  const auto begin = std::size_t{first} * header.gso_size;
  const auto part =
      payload.subspan(begin, std::min(std::size_t{count} * header.gso_size, payload.size() - begin));

  Bytes bytes(prefix + part.size());
  std::ranges::copy(raw.first(prefix), bytes.begin());
  std::ranges::copy(part, bytes.begin() + static_cast<std::ptrdiff_t>(prefix));
  if (count == 1) header.gso_type = gso_none, header.gso_size = 0;
  std::memcpy(bytes.data(), &header, sizeof header);

  const auto ip = std::span(bytes).subspan(device_header);
  const std::size_t tcp = header.checksum_start;
  mend_ip_header(ip, packet.version, first);
  put32(ip, tcp + 4, u32(ip, tcp + 4) + static_cast<std::uint32_t>(begin));
  if (first + count < packet.burst.count) ip[tcp + 13] &= ~(fin | psh);
  if (first > 0) ip[tcp + 13] &= ~cwr;
  put16(ip, tcp + 16, pseudo_header_sum(ip, packet.version, tcp));
  return bytes;
}

}  // namespace isthmus::wan_lab
