#pragma once
// Messages between the hub and the guests, and code that both use.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <string>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/net/coordinator/preflight.h"
#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {

struct PreflightMessage {
  enum class Kind : std::uint8_t {
    here = 1,          ///< guest -> hub: name, address, its report as text
    clock = 2,         ///< hub -> guest; the reply has the guest's clock in `number` (nanoseconds since 1970)
    dial = 3,          ///< hub -> guest: name, address; `number` 1: also measure the reverse direction
    dialled = 4,       ///< guest -> hub: `test`
    going_on = 5,      ///< hub -> guest: keepalive
    verdict = 6,       ///< hub -> guest: text; ends the test
    probe = 7,         ///< guest -> guest, first message: `session`, name of the dialled guest; and its reply
    echo = 8,          ///< guest -> guest, and its reply
    data = 9,          ///< filler text
    data_end = 10,     ///< end of the data; the reply has bytes per second in `number`
    data_please = 11,  ///< asks the other guest to send now
  };
  Kind kind = Kind::here;
  std::uint64_t number = 0;
  std::string name{}, address{}, text{};
  Digest session{};  ///< the hub gives it to all guests, as proof that they take part
  PathTest test{};
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, number, name, address, text, session, test);
  }
};

[[nodiscard]] Frame preflight_frame(const PreflightMessage& message);
/// The next message. Throws Error(network) for any other frame or one longer than `limit`, asio::system_error
/// if the connection ends.
[[nodiscard]] asio::awaitable<PreflightMessage> handle_preflight(ConnectionPtr connection,
                                                                 std::size_t limit = unauthenticated_limit);

/// Sends data for `probe_time` or up to `max_probe_bytes`, then `data_end`.
[[nodiscard]] asio::awaitable<void> send_probe(ConnectionPtr connection);

/// Measures the rate of data from `send_probe`.
class ProbeMeter {
 public:
  void count(std::size_t bytes);
  /// Leaves out the first part, in which TCP finds its rate, if enough remains.
  [[nodiscard]] double bytes_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_, settled_, last_;
  std::uint64_t bytes_ = 0, bytes_settled_ = 0;
};

/// Runs `io` until `work` has ended; returns its result or throws its exception.
[[nodiscard]] std::string run_preflight(asio::io_context& io, asio::awaitable<std::string> work);

[[nodiscard]] LinkOptions preflight_link(const NetworkConfig& network);
inline constexpr auto preflight_dial_limit = std::chrono::seconds(5);
/// For the tests of one pair.
inline constexpr std::chrono::seconds direct_pair_limit{20}, mailbox_pair_limit{120};
[[nodiscard]] std::chrono::seconds pair_limit(const Address& dialled);

}  // namespace isthmus::outer_sync::transport
