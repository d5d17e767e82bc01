// Packets of a TUN device with IFF_VNET_HDR: TCP segments of up to 64 KB, which represent several packets on
// the wire according to the header before them.
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

/// Linux's virtio_net_hdr; its own declaration is not valid C++.
struct DeviceHeader {
  std::uint8_t flags, gso_type;  // gso (generic segmentation offload): how the device splits
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
                destination_port = 0;  // 0 for other protocols than TCP and UDP, and for later fragments
  bool later_fragment = false;
  bool icmp_error = false;
  std::size_t headers = 0;  // bytes of IP and TCP headers; only set for bursts of several packets
  Burst burst;
};

/// Parses `raw`, a device header and a packet. Returns nothing if they are invalid.
std::optional<Packet> parse(std::span<const std::byte> raw);

/// Makes a burst of packets [first, first + count) of a burst, for writing to a device. With all packets, it
/// is the whole burst.
Bytes cut_out(std::span<const std::byte> raw, const Packet& packet, std::uint32_t first, std::uint32_t count);

}  // namespace isthmus::wan_lab
