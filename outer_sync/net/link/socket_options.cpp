#include "net/link/socket_options.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace isthmus::outer_sync::transport {

namespace {

template <class Value>
bool set(int socket, int level, int option, const Value& value) {
  return ::setsockopt(socket, level, option, &value, sizeof value) == 0;
}

bool set_congestion(int socket, const std::string& algorithm) {
  return ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, algorithm.data(),
                      static_cast<socklen_t>(algorithm.size())) == 0;
}

}  // namespace

void give_up_after(int socket, std::chrono::steady_clock::duration limit) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(milliseconds));
  if (milliseconds == 0) return;
  // The timeout counts from data sent, so idle connections need keepalives.
  const auto asked_after = static_cast<int>(std::clamp<std::int64_t>(milliseconds / 2000, 1, 3600));
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, asked_after);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, asked_after);
}

void hold_unsent_at_most(int socket, std::uint32_t bytes) {
  set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes);
}

bool pace(int socket, std::uint64_t bytes_per_second) {
  const std::uint64_t limit = bytes_per_second == 0 ? ~std::uint64_t{0} : bytes_per_second;
  return set(socket, SOL_SOCKET, SO_MAX_PACING_RATE, limit);
}

bool use_congestion_control(int socket, const std::string& algorithm) {
  return algorithm == "system" || set_congestion(socket, algorithm);
}

std::optional<MissingCongestionControl> missing_congestion_control(const std::string& algorithm) {
  if (algorithm == "system") return std::nullopt;
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool there = probe < 0 || set_congestion(probe, algorithm);
  if (probe >= 0) ::close(probe);
  if (there) return std::nullopt;
  return MissingCongestionControl{
      "this system does not offer " + algorithm +
          ", so its own congestion control is used, which is slow on long links that lose packets",
      "modprobe tcp_" + algorithm + " && sysctl net.ipv4.tcp_allowed_congestion_control=\"reno cubic " +
          algorithm + "\""};
}

std::optional<PathInfo> path_info(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return PathInfo{.round_trip = std::chrono::microseconds(info.tcpi_rtt),
                  .shortest_round_trip = std::chrono::microseconds(info.tcpi_min_rtt),
                  .delivered = info.tcpi_bytes_acked + std::uint64_t{info.tcpi_sacked} * info.tcpi_snd_mss,
                  .left = info.tcpi_bytes_sent - info.tcpi_bytes_retrans,
                  .received = info.tcpi_bytes_received,
                  .unsent = info.tcpi_notsent_bytes,
                  .retransmitted = info.tcpi_total_retrans,
                  .sent = info.tcpi_data_segs_out};
}

}  // namespace isthmus::outer_sync::transport
