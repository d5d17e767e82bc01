#pragma once
// Tests the network before a run, with the run's addresses, certificates and way of dialling (`isthmus
// doctor`). The hub takes the coordinator's place, each guest a worker's; the hub makes the guests dial each
// other, one pair at a time. Machines also exchange reports, texts that only the application understands. All
// waits are bounded: `wait` for the hub or the guests, then a few seconds for each pair.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"

namespace isthmus::outer_sync {

/// Maximum length of a machine's report, and of any message of a guest.
inline constexpr std::size_t longest_preflight_report = std::size_t{48} << 10;

/// One member dials another.
struct PathTest {
  std::string from, to;
  std::string address{};        ///< dialled address; empty: `to` has no open port
  std::string problem{};        ///< why there was no connection; empty: it was established
  double round_trip_ms = 0;     ///< shortest of a few measurements
  double bytes_per_second = 0;  ///< from -> to, over one connection for at most `probe_time`; 0: not measured
  double back_bytes_per_second = 0;  ///< to -> from, likewise; measured if `from` has no open port
  template <class Archive>
  void serialize(Archive& ar) {
    ar(from, to, address, problem, round_trip_ms, bytes_per_second, back_bytes_per_second);
  }
};
inline constexpr auto probe_time = std::chrono::seconds(2);
inline constexpr std::uint64_t max_probe_bytes = std::uint64_t{64} << 20;

/// A guest, as known to the hub.
struct PreflightGuest {
  std::string name, address;  ///< HOST:PORT that others dial; empty: it has no open port
  std::string report;
  std::string from;         ///< remote address of its connection, without the port
  std::string lost{};       ///< why its connection was lost before the end; empty: it was not
  double clock_offset = 0;  ///< in seconds: its clock minus the hub's
  double round_trip_ms = 0;
};

class PreflightHub {
 public:
  struct Options {
    std::vector<std::string> expected;  ///< guests to wait for; others may join too
    std::chrono::seconds wait{60};
    std::function<void(const std::string&)> say;  ///< receives progress messages, one line each
    std::optional<MailboxPlace> mailbox{};        ///< with network.mailbox
  };
  /// Binds `network.coordinator`. Throws Error(config) with the address if that fails, Error(data) for
  /// invalid certificates.
  PreflightHub(const NetworkConfig& network, Options options);
  ~PreflightHub();
  PreflightHub(const PreflightHub&) = delete;
  PreflightHub& operator=(const PreflightHub&) = delete;
  [[nodiscard]] std::uint16_t port() const;

  /// Waits for the guests, runs the tests, sends the verdict of `judge` to all guests, and returns it.
  using Judge = std::function<std::string(const std::vector<PreflightGuest>&, const std::vector<PathTest>&)>;
  [[nodiscard]] std::string run(const Judge& judge);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct PreflightGuestOptions {
  std::string name;
  std::string report;  ///< at most `longest_preflight_report` bytes
  std::chrono::seconds wait{60};
  std::optional<MailboxPlace> mailbox{};  ///< with network.mailbox
};
/// Takes part as worker `name`, at its addresses. Returns the hub's verdict. Throws Error(config) if the port
/// cannot be opened, Error(data) for invalid certificates, Error(network) if the hub does not appear in time
/// or is lost.
[[nodiscard]] std::string be_preflight_guest(const NetworkConfig& network,
                                             const PreflightGuestOptions& options);

/// Throws Error(config) with the key `what` if this process cannot listen at the address.
void check_listen_address(const std::string& address, const std::string& what);

/// Why this machine does not offer that congestion control, and the command by which root makes it available;
/// nullopt if it does.
[[nodiscard]] std::optional<std::pair<std::string, std::string>> missing_congestion(
    const std::string& algorithm);

}  // namespace isthmus::outer_sync
