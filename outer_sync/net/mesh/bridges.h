#pragma once
// Bridges: a member with a port joins the connections of a fetcher and of a member without a port, which
// dials it for that. It forwards their bytes and cannot read them if the run uses TLS: the two ends then
// authenticate each other. Used on the io thread only.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "isthmus/outer_sync/protocol/messages/members.h"
#include "net/mesh/fetcher_places.h"

namespace isthmus::outer_sync::transport {

struct WireCounters;

/// How long a bridge waits for the member without a port: that must be asked, dial and authenticate.
inline constexpr std::chrono::seconds bridge_limit{20};

/// A bridge that waits for the member without a port.
struct Bridge {
  Bridge(asio::io_context& io, protocol::ReplicaId to) : member(to), ready(io) {}
  protocol::ReplicaId member;                ///< may be the other end
  std::optional<asio::ip::tcp::socket> end;  ///< its connection, once it has dialled
  bool is_ready = false;                     ///< `end` may carry bytes
  bool is_over = false;                      ///< no seeker waits for it any more
  asio::steady_timer ready;                  ///< cancelled when `end` is ready
};

/// Shared, since coroutines may outlive the mesh.
struct Bridges {
  std::uint64_t last = 0;  ///< number of the newest bridge
  std::map<std::uint64_t, std::shared_ptr<Bridge>> waiting;
  std::shared_ptr<FetcherNames> seekers = std::make_shared<FetcherNames>();
  std::shared_ptr<FetcherNames> dialled =
      std::make_shared<FetcherNames>();  ///< peers that asked to be dialled
};

/// Forwards bytes both ways, and counts them, until the member closes its end or one end is lost; then closes
/// both.
[[nodiscard]] asio::awaitable<void> join(asio::ip::tcp::socket seeker, asio::ip::tcp::socket member,
                                         WireCounters& counters);

}  // namespace isthmus::outer_sync::transport
