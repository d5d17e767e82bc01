#pragma once
// The network as a run will use it, tried out before the run: same addresses, same certificates, same
// dialling. One process, the hub, stands in the coordinator's place; each of the others, a guest, in a
// worker's. The hub has them dial each other, one pair at a time. What else machines say of themselves are
// texts that only the application understands.
//
// Nothing here waits for ever: guests for `wait` until there is a hub, the hub for `wait` until all guests
// are there, and then a few seconds for each pair.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/config/config.h"

namespace isthmus::outer_sync {

/// A machine's own text is no longer; neither is any message of a guest.
inline constexpr std::size_t longest_preflight_report = std::size_t{48} << 10;

/// One member dialling another.
struct PathTest {
  std::string from, to;
  std::string address{};        ///< that was dialled; empty: `to` opens no port
  std::string problem{};        ///< why there was no connection; empty: there was
  double round_trip_ms = 0;     ///< shortest of a few
  double bytes_per_second = 0;  ///< from -> to, over one connection for at most `probe_time`; 0: not measured
  double back_bytes_per_second = 0;  ///< to -> from, likewise; measured where `to` cannot dial
  template <class Archive>
  void serialize(Archive& ar) {
    ar(from, to, address, problem, round_trip_ms, bytes_per_second, back_bytes_per_second);
  }
};
inline constexpr auto probe_time = std::chrono::seconds(2);
inline constexpr std::uint64_t max_probe_bytes = std::uint64_t{64} << 20;

/// What the hub knows of a guest.
struct PreflightGuest {
  std::string name, address;  ///< HOST:PORT that others dial; empty: it opens no port
  std::string report;
  std::string from;         ///< address that its connection comes from, without the port
  std::string lost{};       ///< why it has gone before the end; empty: it has not
  double clock_offset = 0;  ///< seconds, of its clock against the hub's
  double round_trip_ms = 0;
};

class PreflightHub {
 public:
  struct Options {
    std::vector<std::string> expected;  ///< names of guests; others may come too, in time
    std::chrono::seconds wait{60};
    std::function<void(const std::string&)> say;  ///< a line at a time, what goes on
  };
  /// Binds `network.coordinator`. Throws Error(config) naming the address, Error(data) for certificates.
  PreflightHub(const NetworkConfig& network, Options options);
  ~PreflightHub();
  PreflightHub(const PreflightHub&) = delete;
  PreflightHub& operator=(const PreflightHub&) = delete;
  [[nodiscard]] std::uint16_t port() const;

  /// Gathers, tests, tells all guests what `judge` makes of it, and returns that.
  using Judge = std::function<std::string(const std::vector<PreflightGuest>&, const std::vector<PathTest>&)>;
  [[nodiscard]] std::string run(const Judge& judge);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct PreflightGuestOptions {
  std::string name;
  std::string report;  ///< `longest_preflight_report` at most
  std::chrono::seconds wait{60};
};
/// Takes part as worker `name`, at its addresses. Returns the hub's judgement. Throws Error(config) for a
/// port that cannot be had, Error(data) for certificates, Error(network) when there is no hub in time, or it
/// goes.
[[nodiscard]] std::string be_preflight_guest(const NetworkConfig& network,
                                             const PreflightGuestOptions& options);

/// Throws Error(config) naming the key `what` when this address cannot be listened at.
void check_listen_address(const std::string& address, const std::string& what);

/// Why this machine cannot have that congestion control, and what to do; nothing if it can.
[[nodiscard]] std::optional<std::string> lacks_congestion(const std::string& algorithm);

}  // namespace isthmus::outer_sync
