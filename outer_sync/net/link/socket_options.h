#pragma once
// Options for sockets over long links. docs/architecture.md explains why each is set, and why buffer sizes
// are left alone.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace isthmus::outer_sync::transport {

/// `socket` is a descriptor of a TCP socket. Options that the system does not support are ignored: the
/// defaults work, only less well.

/// Ends the connection when sent data stays unacknowledged for this long; 0: the system's own limit. On an
/// idle connection, keepalives probe the other end.
void give_up_after(int socket, std::chrono::steady_clock::duration limit);

/// The kernel buffers at most this much beyond what may be in flight: data in its buffer can no longer be
/// overtaken.
void hold_unsent_at_most(int socket, std::uint32_t bytes);

/// Asks the system to pace packets at this rate; 0 lifts the limit. Returns whether it does.
bool pace(int socket, std::uint64_t bytes_per_second);

/// `algorithm`: bbr, cubic, or system for the system's default. Returns whether it is in use now.
bool use_congestion_control(int socket, const std::string& algorithm);

/// Why this machine does not offer a congestion control, and the command by which root makes it available.
struct MissingCongestionControl {
  std::string problem, remedy;
};
/// nullopt if the machine offers `algorithm`.
[[nodiscard]] std::optional<MissingCongestionControl> missing_congestion_control(
    const std::string& algorithm);

/// State of a connection as TCP reports it.
struct PathInfo {
  std::chrono::microseconds round_trip{}, shortest_round_trip{};
  std::uint64_t delivered = 0;      ///< bytes that the other end has acknowledged
  std::uint64_t left = 0;           ///< bytes that have been sent at least once
  std::uint64_t received = 0;       ///< bytes received from the other end
  std::uint64_t unsent = 0;         ///< bytes held back by congestion control or pacing
  std::uint64_t retransmitted = 0;  ///< segments
  std::uint64_t sent = 0;           ///< segments
};
[[nodiscard]] std::optional<PathInfo> path_info(int socket);

}  // namespace isthmus::outer_sync::transport
