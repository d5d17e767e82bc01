#pragma once
// What hub and guests say to each other, and what both do.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <string>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/net/coordinator/preflight.h"
#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {

struct PreflightMessage {
  enum class Kind : std::uint8_t {
    here = 1,          ///< guest -> hub: name, address, its report as text
    clock = 2,         ///< hub -> guest, and back with the guest's clock in `number` (nanoseconds since 1970)
    dial = 3,          ///< hub -> guest: name, address; `number` 1: measure the way back too
    dialled = 4,       ///< guest -> hub: `test`
    going_on = 5,      ///< hub -> guest: it has not been forgotten
    verdict = 6,       ///< hub -> guest: text. The end
    probe = 7,         ///< guest -> guest, first: `session`, name of the one that is meant; and back
    echo = 8,          ///< and back
    data = 9,          ///< text of no meaning
    data_end = 10,     ///< and back, with bytes per second in `number`
    data_please = 11,  ///< the other one sends now
  };
  Kind kind = Kind::here;
  std::uint64_t number = 0;
  std::string name{}, address{}, text{};
  Digest session{};  ///< that the hub has given to all: who has it takes part
  PathTest test{};
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, number, name, address, text, session, test);
  }
};

[[nodiscard]] Frame preflight_frame(const PreflightMessage& message);
/// The next one. Throws Error(network) for anything else or longer than `limit`, asio::system_error when it
/// ends.
[[nodiscard]] asio::awaitable<PreflightMessage> handle_preflight(ConnectionPtr connection,
                                                                 std::size_t limit = unauthenticated_limit);

/// Sends data for `probe_time` or `max_probe_bytes`, and its end.
[[nodiscard]] asio::awaitable<void> send_probe(ConnectionPtr connection);

/// Takes what `send_probe` sends.
class ProbeMeter {
 public:
  void count(std::size_t bytes);
  /// Without the first part of the time, in which TCP finds out how fast it may be, where that leaves enough.
  [[nodiscard]] double bytes_per_second() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_, settled_, last_;
  std::uint64_t bytes_ = 0, bytes_settled_ = 0;
};

/// Runs `io` until `work` has ended; returns or throws what it does.
[[nodiscard]] std::string run_preflight(asio::io_context& io, asio::awaitable<std::string> work);

[[nodiscard]] LinkOptions preflight_link(const NetworkConfig& network);
inline constexpr auto preflight_dial_limit = std::chrono::seconds(5);
inline constexpr auto pair_limit = std::chrono::seconds(20);

}  // namespace isthmus::outer_sync::transport
