// The part of PeerMesh that sets up lanes (accepted and dialled connections) and notices that they are lost.

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <tuple>
#include <utility>

#include "isthmus/base/error.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using protocol::ReplicaId;
using namespace std::chrono_literals;

namespace {

constexpr auto redial_after = 100ms;
/// How long only the end that dials first tries, unless a quarter of the time after which an idle connection
/// counts as lost is shorter.
constexpr Connection::Clock::duration head_start = 2s;
/// The same for a peer that is dialled through the mailbox.
constexpr Connection::Clock::duration mailbox_head_start = 6s;
constexpr auto look_at_relay_every = 1s;
/// A lane that delivers nothing for this long may be stalled.
constexpr auto direct_stall = 1s, mailbox_stall = 15s;

}  // namespace

/// Whether this end of the pair dials first. Its connection wins if both dial at once.
bool PeerMesh::comes_first(const Peer& peer) const {
  return std::tie(self_.name, self_.id) < std::tie(peer.info.name, peer.info.id);
}

// ---- lanes that come up, and are lost ----

/// The connection's number, equal at both ends.
std::uint64_t PeerMesh::number_of(const Peer& peer, const Lane& lane) const {
  const bool by_higher = lane.dialled_here == (self_.id > peer.info.id);
  return 2 * (lane.dialled_here ? lane.dialled : lane.accepted) + (by_higher ? 1 : 0);
}

void PeerMesh::lane_up(const PeerPtr& peer, std::size_t lane, const ConnectionPtr& connection) {
  auto& place = peer->lanes[lane].connection;
  const bool first = !peer->up();
  if (place) {  // the peer has noticed before us that the old one is dead
    place->close();
    peer->outbox.lane_lost(lane);
    paths_lost_with(peer->info.id);
  }
  place = connection;
  peer->lanes[lane].rate = peer->lanes[lane].delivered = peer->lanes[lane].max_unsent = 0;
  peer->lanes[lane].number = number_of(*peer, peer->lanes[lane]);
  peer->arrivals.begun(lane, peer->lanes[lane].number);
  peer->far = !connection->is_loopback();
  peer->outbox.never_stalls_within(connection->by_mailbox() ? mailbox_stall : direct_stall);
  connection->when_ready([this, weak = std::weak_ptr(peer)] {
    if (const auto fed = weak.lock()) feed(fed);
  });
  if (first) {
    const auto id = peer->info.id;
    // Frames in flight through a relay may be lost with it, so they count as not sent.
    if (const auto relay = ways_.relay_to(id); relay && ways_.open(id)) {
      if (const auto at = peers_.find(*relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
      handler_.on_peer_down(id);
    }
    handler_.on_peer_up(id);
  }
  feed(peer);
}

void PeerMesh::lane_down(const PeerPtr& peer, std::size_t lane) {
  peer->lanes[lane].connection = nullptr;
  peer->arrivals.begun(lane, 0);
  peer->lanes[lane].down_since = Connection::Clock::now();
  peer->lanes[lane].turn.cancel();
  peer->outbox.lane_lost(lane);
  if (peer->gone) return;
  if (peer->up()) {
    paths_lost_with(peer->info.id);  // a relay_lost from it may have been lost with that lane
    return feed(peer);
  }
  const auto id = peer->info.id;
  peer->outbox.clear();
  peer->last_up = clock_.now();
  static_cast<void>(ways_.close(id));  // reopen a relayed path, so that lost frames are repeated
  paths_lost_with(id);
  say_lost_to_origins(id);
  if (!peer->gone) handler_.on_peer_down(id);
}

void PeerMesh::cut_stalled(Peer& peer) {
  for (const auto lane : peer.outbox.stalled(clock_.now())) {
    handler_.on_message("lane " + std::to_string(lane) + " to " + peer.info.name +
                        " delivers nothing while others do: redialling it");
    if (peer.lanes[lane].connection) peer.lanes[lane].connection->close();
  }
}

std::vector<ReplicaId> PeerMesh::unreachable(AwakeClock::Clock::duration limit) {
  const auto now = clock_.now();
  std::vector<ReplicaId> peers;
  for (const auto& [id, peer] : peers_) {
    if (!up(id) && now - peer->last_up > limit) peers.push_back(id);
  }
  return peers;
}

// ---- accepted connections ----

void PeerMesh::accept(asio::ip::tcp::socket socket, bool by_mailbox) {
  OtherEnd other{.by_mailbox = by_mailbox};
  const auto connection = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
  spawn(io_.get_executor(), "the connection with " + connection->remote(), welcome(connection));
}

asio::awaitable<void> PeerMesh::welcome(ConnectionPtr connection) {
  PeerHello hello;
  PeerPtr peer;
  try {
    const UnknownConnections::Guest guest(unknown_, connection);
    waiting_.cancel();  // wake a connection that was displaced
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold, [this] { waiting_.cancel(); });
    hello = hello_of(co_await connection->receive(unauthenticated_limit));
    peer = co_await peer_that_says(hello, connection);
    const bool lane = hello.role == PeerRole::member;
    if (lane && !may_take_its_place(*peer, peer->lanes[hello.lane], hello)) co_return connection->close();
    if (lane && connection->by_mailbox() && ways_.works(hello.from)) co_return connection->close();
    if (lane || hello.role == PeerRole::fetcher)
      connection->send(hello_frame(hello_to(hello.from, hello.lane)));
  } catch (const asio::system_error& error) {
    stranger_line_("a connection from " + connection->remote() + " ended before its hello: " + error.what());
    connection->close();
    co_return;
  } catch (const std::exception& error) {
    stranger_line_("dropped a connection from " + connection->remote() + ": " + error.what());
    connection->close();
    co_return;
  }
  if (hello.role == PeerRole::fetcher) {
    co_await teach(hello.from, std::move(connection));
  } else if (hello.role == PeerRole::bridge_seeker) {
    co_await build_bridge(hello, std::move(connection));
  } else if (hello.role == PeerRole::bridge_end) {
    co_await join_bridge(hello, std::move(connection));
  } else {
    peer->lanes[hello.lane].stop_dialling();
    peer->lanes[hello.lane].accepted = hello.number;
    peer->lanes[hello.lane].dialled_here = false;
    co_await serve(std::move(peer), hello.lane, std::move(connection));
  }
}

namespace {

void check_role(const PeerHello& hello, const Connection& connection) {
  const auto role = connection.peer_role();
  const bool learns = hello.role == PeerRole::fetcher || hello.role == PeerRole::bridge_seeker;
  if (!role || *role == tls::Role::trainer || *role == (learns ? tls::Role::observer : tls::Role::reducer))
    return;
  throw Error(ErrorKind::network, "the certificate of '" + connection.peer_name() + "' has role " +
                                      tls::to_string(*role) + ", which " +
                                      (learns ? "may not copy the state" : "may not take part in rounds"));
}

}  // namespace

/// Waits until the peer is known: it may learn of a view and dial before this member does. Returns null for a
/// fetcher and for a seeker of a bridge.
asio::awaitable<PeerPtr> PeerMesh::peer_that_says(PeerHello hello, ConnectionPtr connection) {
  check_role(hello, *connection);
  for (;;) {
    if (self_.begun) {
      check_hello(hello);
      connection->trust();
    }
    if (self_.begun && hello.role == PeerRole::fetcher) {
      // A fetcher that has redialled may be served twice until its old connection is seen to have ended.
      check_place(*fetchers_, *connection, max_fetchers, 2);
      co_return nullptr;
    }
    if (self_.begun && hello.role == PeerRole::bridge_seeker) {
      check_place(*bridges_->seekers, *connection, max_fetchers, max_fetchers / 2);  // one for each donor
      co_return nullptr;
    }
    if (const auto at = peers_.find(hello.from); self_.begun && at != peers_.end()) {
      const auto shown = connection->peer_name();
      if (!shown.empty() && shown != at->second->info.name)
        throw Error(ErrorKind::network, "it claims to be " + at->second->info.name +
                                            ", but its certificate is for '" + shown + "'");
      // A connection that the peer has given up must not displace its newer one.
      if (connection->hung_up())
        throw Error(ErrorKind::network, "it closed the connection before it got an answer");
      co_return at->second;
    }
    asio::error_code woken;
    co_await waiting_.async_wait(asio::redirect_error(use_awaitable, woken));
    if (!connection->open()) throw Error(ErrorKind::network, "it is not a member of a view known here");
  }
}

PeerHello PeerMesh::hello_to(ReplicaId peer, std::size_t lane) const {
  return {.token = self_.token, .from = self_.id, .to = peer, .lane = static_cast<std::uint16_t>(lane)};
}

/// Whether an accepted connection takes over its lane. If the lane's connection was dialled by the peer, the
/// peer has given that up; if it was dialled here, it is over only if the peer has seen it. If both ends are
/// dialling, the connection of the end that dials first wins, unless it makes no progress.
bool PeerMesh::may_take_its_place(const Peer& peer, const Lane& lane, const PeerHello& hello) const {
  if (lane.connection) return !lane.dialled_here || hello.replaces == lane.dialled;
  const bool crossed = lane.introducing && lane.introducing->open();
  return !crossed || !comes_first(peer) ||
         Connection::Clock::now() - lane.introduced > head_start + 2 * link_.hold;
}

void PeerMesh::check_hello(const PeerHello& hello) const {
  const bool known_role = hello.role <= PeerRole::bridge_end;
  const bool proper = hello.token == self_.token && hello.to == self_.id && hello.from != self_.id &&
                      hello.lane < lanes_ && known_role;
  if (!proper) throw Error(ErrorKind::network, "its hello is for another run or another replica");
}

asio::awaitable<void> PeerMesh::teach(ReplicaId fetcher, ConnectionPtr connection) {
  const FetcherPlace place(fetchers_, connection->peer_name());
  try {
    co_await handler_.on_fetcher(fetcher, connection);
  } catch (const asio::system_error&) {
    // It has the state, or has closed the connection.
  } catch (const std::exception& error) {
    stranger_line_("dropped a fetcher at " + connection->remote() + ": " + error.what());
  }
  connection->close();
}

// ---- dialled connections ----

/// Waits until this end should dial the lane: it must be down. The end that comes first, or dialled it last,
/// dials at once; the other end dials too after some time.
asio::awaitable<void> PeerMesh::wait_for_turn(PeerPtr peer, std::size_t lane) {
  auto& place = peer->lanes[lane];
  auto others_turn = head_start;
  if (link_.give_up > 0s) others_turn = std::min(others_turn, link_.give_up / 4);
  others_turn += 2 * link_.hold;
  while (!peer->gone) {
    // A peer without a port may still be able to dial this end, which is faster than the mailbox.
    const bool by_mailbox = is_mailbox_host(peer->address->host);
    const bool at_once = comes_first(*peer) || !acceptor_.is_open() || place.dialled_here;
    const auto wait = by_mailbox && acceptor_.is_open() ? mailbox_head_start : at_once ? 0s : others_turn;
    const auto now = Connection::Clock::now();
    auto from = place.down_since + wait;
    if (by_mailbox && a_relay_may_help(*peer)) from = std::max(from, now + look_at_relay_every);
    if (!place.connection && from <= now) co_return;
    place.turn.expires_at(place.connection ? Connection::Clock::time_point::max() : from);
    asio::error_code woken;
    co_await place.turn.async_wait(asio::redirect_error(use_awaitable, woken));
  }
}

asio::awaitable<void> PeerMesh::dial_loop(PeerPtr peer, std::size_t lane) {
  while (!peer->gone) {
    co_await wait_for_turn(peer, lane);
    if (peer->gone) co_return;
    asio::ip::tcp::socket socket(io_);
    peer->lanes[lane].connecting = &socket;
    const auto error = co_await dial(socket, *peer->address, dial_time_limit, link_.mailbox);
    peer->lanes[lane].connecting = nullptr;
    if (peer->gone) co_return;
    if (!error && !peer->lanes[lane].connection) {
      OtherEnd other{
          .dialled = true, .name = peer->info.name, .by_mailbox = is_mailbox_host(peer->address->host)};
      auto connection = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
      co_await introduce(peer, lane, std::move(connection));
    }
    asio::steady_timer pause(io_, redial_after);
    co_await pause.async_wait(use_awaitable);
  }
}

/// Any process may listen at the address, so the lane is up only once the peer has answered.
asio::awaitable<void> PeerMesh::introduce(PeerPtr peer, std::size_t lane, ConnectionPtr connection) {
  auto& place = peer->lanes[lane];
  place.introducing = connection;
  place.introduced = Connection::Clock::now();
  auto hello = hello_to(peer->info.id, lane);
  hello.number = ++dialled_;
  hello.replaces = place.accepted;
  try {
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold);
    connection->send(hello_frame(hello));
    const auto answer = hello_of(co_await connection->receive(unauthenticated_limit));
    check_hello(answer);
    if (answer.from != peer->info.id || answer.lane != lane || answer.role != PeerRole::member)
      throw Error(ErrorKind::network, "the process there is not the member that was dialled");
  } catch (const asio::system_error&) {
    connection->close();
  } catch (const std::exception& error) {
    stranger_line_("no member answers at " + connection->remote() + ": " + error.what());
    connection->close();
  }
  place.introducing = nullptr;
  if (connection->by_mailbox() && ways_.works(peer->info.id)) connection->close();  // the relay is faster
  if (!connection->open() || peer->gone) co_return;
  place.dialled = hello.number;
  place.dialled_here = true;
  co_await serve(std::move(peer), lane, std::move(connection));
}

}  // namespace isthmus::outer_sync::transport
