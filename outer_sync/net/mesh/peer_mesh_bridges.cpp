// The part of PeerMesh that builds bridges: through a member with a port, fetchers reach members without.

#include <array>
#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <utility>

#include "isthmus/base/error.h"
#include "net/link/listen.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;

namespace {

/// The member without a port sends it when it waits for the fetcher's first bytes. Before that, these could
/// end up in what it still reads as frames.
constexpr std::array<char, 1> ready_mark = {'B'};

/// How often a waiting bridge looks whether both ends are there still.
constexpr auto look_every = std::chrono::milliseconds(200);

}  // namespace

// ---- at the member with a port ----

/// The seeker gets its answer when the other end is ready. If that fails, its connection is closed.
asio::awaitable<void> PeerMesh::build_bridge(PeerHello hello, ConnectionPtr seeker) {
  const FetcherPlace place(bridges_->seekers, seeker->peer_name());
  const auto bridges = bridges_;
  const auto number = ++bridges->last;
  const auto bridge = std::make_shared<Bridge>(io_, hello.beyond);
  try {
    bridges->waiting.emplace(number, bridge);
    co_await await_end(*bridge, number, seeker);
    seeker->send(hello_frame(hello_to(hello.from, 0)));
    auto near = co_await seeker->release();
    handler_.on_bridge(true);
    co_await join(std::move(near), *std::exchange(bridge->end, std::nullopt), counters_);
    handler_.on_bridge(false);
  } catch (const asio::system_error&) {
    // The seeker has closed its connection.
  } catch (const std::exception& error) {
    stranger_line_("dropped a fetcher at " + seeker->remote() + ": " + error.what());
  }
  bridge->is_over = true;
  bridges->waiting.erase(number);
  seeker->close();
}

/// Asks the member to dial, and waits until its end is ready. Throws Error(network) if it is not in time, or
/// if the member or the seeker is lost.
asio::awaitable<void> PeerMesh::await_end(Bridge& bridge, std::uint64_t number, ConnectionPtr seeker) {
  const auto is_up = [&] {
    const auto at = peers_.find(bridge.member);
    return at != peers_.end() && at->second->up();
  };
  if (!is_up())
    throw Error(ErrorKind::network, "it asks for a bridge to a member that is not connected here");
  send_at_once(*peers_.at(bridge.member),
               {FrameType::bridge_wanted, to_bytes(BridgeWanted{number}), nullptr});
  const auto until = Connection::Clock::now() + bridge_limit;
  while (!bridge.is_ready) {
    if (seeker->hung_up()) throw Error(ErrorKind::network, "it hung up before the bridge was ready");
    if (!is_up()) throw Error(ErrorKind::network, "the member that it wants to reach is lost");
    if (Connection::Clock::now() >= until)
      throw Error(ErrorKind::network, "the member that it wants to reach has opened no bridge");
    asio::error_code woken;
    bridge.ready.expires_after(look_every);
    co_await bridge.ready.async_wait(asio::redirect_error(use_awaitable, woken));
  }
}

asio::awaitable<void> PeerMesh::join_bridge(PeerHello hello, ConnectionPtr end) {
  const auto found = bridges_->waiting.find(hello.beyond);
  if (found == bridges_->waiting.end() || found->second->member != hello.from) co_return end->close();
  const auto bridge = found->second;
  bridges_->waiting.erase(found);
  try {
    end->send(hello_frame(hello_to(hello.from, 0)));
    const auto socket = std::make_shared<asio::ip::tcp::socket>(co_await end->release());
    asio::steady_timer limit(io_, bridge_limit);
    limit.async_wait([socket](const asio::error_code& ended) {
      asio::error_code ignored;
      if (!ended) socket->cancel(ignored);
    });
    std::array<char, 1> mark{};
    co_await asio::async_read(*socket, asio::buffer(mark), use_awaitable);
    if (bridge->is_over || mark != ready_mark) co_return;
    bridge->end.emplace(std::move(*socket));
    bridge->is_ready = true;
  } catch (const asio::system_error&) {
    // The seeker's end notices that nothing comes.
  }
  bridge->ready.cancel();
}

// ---- at the member without a port ----

/// Dials the peer that asked for it. The other end of the bridge then appears here like a connection that was
/// accepted.
asio::awaitable<void> PeerMesh::dial_bridge(PeerPtr peer, std::uint64_t number) {
  if (bridges_->dialled->count(peer->info.name) >= max_fetchers) co_return;
  const FetcherPlace place(bridges_->dialled, peer->info.name);
  asio::ip::tcp::socket socket(io_);
  if (co_await dial(socket, *peer->address, dial_time_limit, link_.mailbox)) co_return;
  const auto connection = start_connection(std::move(socket), counters_, link_, trace_,
                                           {.dialled = true, .name = peer->info.name});
  auto hello = hello_to(peer->info.id, 0);
  hello.role = PeerRole::bridge_end;
  hello.beyond = number;
  try {
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold);
    connection->send(hello_frame(hello));
    const auto answer = hello_of(co_await connection->receive(unauthenticated_limit));
    check_hello(answer);
    if (answer.from != peer->info.id || answer.role != PeerRole::member)
      throw Error(ErrorKind::network, "the process there is not the member that was dialled");
    auto given = co_await connection->release();
    co_await asio::async_write(given, asio::buffer(ready_mark), use_awaitable);
    co_return accept(std::move(given));
  } catch (const asio::system_error&) {
    // The bridge is not wanted any more.
  } catch (const std::exception& error) {
    stranger_line_("no bridge at " + connection->remote() + ": " + error.what());
  }
  connection->close();
}

}  // namespace isthmus::outer_sync::transport
