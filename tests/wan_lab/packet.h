// Packets as a TUN device with IFF_VNET_HDR gives and takes them: TCP segments of up to 64 KB, which stand
// for as many packets on the wire as the header before them says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "link.h"

namespace isthmus::wan_lab {

using Bytes = std::vector<std::byte>;
using Address = std::array<std::uint8_t, 16>;  // IPv4 addresses in the first four bytes, the others 0

/// virtio_net_hdr of Linux, whose own declaration is no C++.
struct DeviceHeader {
  std::uint8_t flags, gso_type;  // gso: what the device splits (generic segmentation offload)
  std::uint16_t header_bytes, gso_size, checksum_start, checksum_offset;
};
constexpr std::uint8_t needs_checksum = 1;
constexpr std::uint8_t gso_none = 0, gso_tcp4 = 1, gso_tcp6 = 4;

constexpr std::size_t device_header = sizeof(DeviceHeader);
constexpr std::size_t largest_packet = device_header + 65'575;  // IPv6: a payload of 65,535 and its header

struct Packet {
  int version;  // 4 or 6
  Address source, destination;
  std::uint8_t protocol;
  std::uint16_t source_port = 0,
                destination_port = 0;  // 0 where there are none: not TCP or UDP, or a later fragment
  bool later_fragment = false;
  bool icmp_error = false;
  std::size_t headers = 0;  // bytes of IP and TCP headers; only of a burst of more than one packet
  Burst burst;
};

/// Reads the headers of `raw`, a device header and what follows it; nothing if they are not sound.
std::optional<Packet> parse(std::span<const std::byte> raw);

/// Packets [first, first + count) of a burst as one that can be written to a device. The whole burst is
/// itself.
Bytes cut_out(std::span<const std::byte> raw, const Packet& packet, std::uint32_t first, std::uint32_t count);

}  // namespace isthmus::wan_lab
