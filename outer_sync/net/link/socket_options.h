#pragma once
// What sockets over long links need beside the system's defaults. docs/architecture.md says why each is set,
// and why buffers are left alone.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace isthmus::outer_sync::transport {

/// `socket` is a descriptor of a TCP socket. Setting what a system does not know is no error: the defaults
/// work, if not as well.

/// A connection has ended when what was sent stays without an acknowledgement for that long. 0: the system's
/// own limit. The other end is asked whether it is there where nothing is sent.
void give_up_after(int socket, std::chrono::steady_clock::duration limit);

/// The kernel takes no more than this beyond what may be in flight: what it has can no longer be overtaken.
void hold_unsent_at_most(int socket, std::uint32_t bytes);

/// Returns whether the system spreads packets at that rate from now on; 0 lifts the limit.
bool pace(int socket, std::uint64_t bytes_per_second);

/// `algorithm`: bbr, cubic, or system for what the system has chosen. Returns whether it is used now.
bool use_congestion_control(int socket, const std::string& algorithm);

/// Why `algorithm` cannot be had here, in words for people; none if it can.
[[nodiscard]] std::optional<std::string> lacks_congestion_control(const std::string& algorithm);

/// How a connection does, as TCP sees it.
struct PathInfo {
  std::chrono::microseconds round_trip{}, shortest_round_trip{};
  std::uint64_t delivered = 0;      ///< bytes that the other end has acknowledged
  std::uint64_t left = 0;           ///< bytes that have been sent at least once
  std::uint64_t received = 0;       ///< bytes, of those that the other end has sent
  std::uint64_t unsent = 0;         ///< bytes that congestion control or the pace holds back
  std::uint64_t retransmitted = 0;  ///< segments
  std::uint64_t sent = 0;           ///< segments
};
[[nodiscard]] std::optional<PathInfo> path_info(int socket);

}  // namespace isthmus::outer_sync::transport
