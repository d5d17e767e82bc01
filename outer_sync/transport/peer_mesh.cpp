#include "transport/peer_mesh.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/transport/address.h"
#include "transport/listen.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using protocol::MemberIndex;
using namespace std::chrono_literals;

namespace {
constexpr auto hello_time_limit = 10s;
constexpr auto redial_after = 100ms;
constexpr std::size_t most_breaches = 5;

}  // namespace

void LineLimiter::operator()(const std::string& line) {
  const auto now = Connection::Clock::now();
  if (now - last_ < 1s) {
    ++swallowed_;
    return;
  }
  last_ = now;
  const auto more = std::exchange(swallowed_, 0);
  out_(more == 0 ? line : line + " (and " + std::to_string(more) + " more such)");
}

PeerMesh::PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes,
                   WireCounters& counters, LinkOptions link, AwakeClock& clock, Trace& trace,
                   Handler& handler)
    : io_(io),
      acceptor_(std::move(acceptor)),
      lanes_(lanes),
      counters_(counters),
      link_(link),
      clock_(clock),
      trace_(trace),
      handler_(handler),
      stranger_line_([&handler](const std::string& line) { handler.on_message(line); }),
      started_event_(io, Connection::Clock::time_point::max()) {
  asio::co_spawn(io_, accept_loop(), asio::detached);
}

void PeerMesh::start(const protocol::View& view, MemberIndex self, const Digest& token,
                     std::size_t frame_limit, const BufferPool& chunks) {
  view_ = view.number;
  self_ = self;
  token_ = token;
  frame_limit_ = frame_limit;
  chunks_ = chunks;
  for (const auto& member : view.members) {
    peers_.push_back({member.name, member.address, std::vector<ConnectionPtr>(lanes_), clock_.now(), 0});
  }
  started_ = true;
  started_event_.cancel();
  const auto members = static_cast<MemberIndex>(peers_.size());
  for (auto peer = static_cast<MemberIndex>(self + 1); peer < members; ++peer) {
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      asio::co_spawn(io_, dial_loop(peer, lane), asio::detached);
  }
}

void PeerMesh::send(MemberIndex peer, ChunkId chunk, Frame frame) {
  if (const auto& lane = peers_.at(peer).lanes[lane_of(chunk)]) lane->send(std::move(frame));
}

std::optional<MemberIndex> PeerMesh::lost(AwakeClock::Clock::duration limit) {
  const auto now = clock_.now();
  const auto members = static_cast<MemberIndex>(peers_.size());
  for (MemberIndex peer = 0; peer < members; ++peer) {
    if (peer == self_) continue;
    bool up = false;
    for (const auto& lane : peers_[peer].lanes) up = up || lane != nullptr;
    if (!up && now - peers_[peer].last_up > limit) return peer;
  }
  return std::nullopt;
}

// ---- connections that come in ----

asio::awaitable<void> PeerMesh::accept_loop() {
  for (;;) {
    asio::error_code error;
    auto socket = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
    if (!acceptor_.is_open()) co_return;
    if (error) {  // out of descriptors, say: the listener must survive it
      asio::steady_timer pause(io_, redial_after);
      co_await pause.async_wait(use_awaitable);
      continue;
    }
    asio::co_spawn(io_, welcome(start_connection(std::move(socket), counters_, link_, trace_)),
                   asio::detached);
  }
}

asio::awaitable<void> PeerMesh::welcome(ConnectionPtr connection) {
  PeerHello hello;
  try {
    const UnknownConnections::Guest guest(unknown_, connection);
    if (!started_) started_event_.cancel();  // whoever was pushed out need not wait for the view
    const Watchdog watchdog(connection, hello_time_limit + 2 * link_.hold);
    const auto frame = co_await connection->receive(unauthenticated_limit);
    if (frame.type != FrameType::peer_hello) throw Error(ErrorKind::network, "its first frame is no hello");
    // A peer may hear of the view before we do.
    while (!started_ && connection->open()) {
      asio::error_code woken;
      co_await started_event_.async_wait(asio::redirect_error(use_awaitable, woken));
    }
    hello = check_hello(frame);
    if (hello.from >= self_) throw Error(ErrorKind::network, "it is not its part to dial");
    connection->send(hello_to(hello.from, hello.lane));
  } catch (const Error& error) {
    stranger_line_("dropped a connection from " + connection->remote() + ": " + error.what());
    connection->close();
    co_return;
  } catch (const asio::system_error& error) {
    stranger_line_("a connection from " + connection->remote() + " ended before its hello: " + error.what());
    connection->close();
    co_return;
  }
  co_await serve(hello.from, hello.lane, std::move(connection));
}

Frame PeerMesh::hello_to(MemberIndex peer, std::size_t lane) const {
  return {FrameType::peer_hello,
          to_bytes(PeerHello{token_, view_, self_, peer, static_cast<std::uint16_t>(lane)}), nullptr};
}

PeerHello PeerMesh::check_hello(const Connection::Received& frame) const {
  if (frame.type != FrameType::peer_hello) throw Error(ErrorKind::network, "its first frame is no hello");
  const auto hello = from_bytes<PeerHello>(*frame.body);
  const bool proper = hello.token == token_ && hello.view == view_ && hello.to == self_ &&
                      hello.from < peers_.size() && hello.lane < lanes_;
  if (!proper) throw Error(ErrorKind::network, "its hello is not of this run, view or member");
  return hello;
}

// ---- connections that go out ----

asio::awaitable<void> PeerMesh::dial_loop(MemberIndex peer, std::size_t lane) {
  const auto address = parse_address(peers_[peer].address, "the address of a peer");
  for (;;) {
    asio::error_code error;
    auto socket = co_await dial(io_, address, error);
    if (!error) {
      co_await introduce(start_connection(std::move(socket), counters_, link_, trace_), peer, lane);
    }
    asio::steady_timer pause(io_, redial_after);
    co_await pause.async_wait(use_awaitable);
  }
}

/// Whoever listens there may be anybody: the lane is up only once the peer has answered.
asio::awaitable<void> PeerMesh::introduce(ConnectionPtr connection, MemberIndex peer, std::size_t lane) {
  try {
    const Watchdog watchdog(connection, hello_time_limit + 2 * link_.hold);
    connection->send(hello_to(peer, lane));
    const auto answer = check_hello(co_await connection->receive(unauthenticated_limit));
    if (answer.from != peer || answer.lane != lane) throw Error(ErrorKind::network, "it is another member");
  } catch (const Error& error) {
    stranger_line_("no member answers at " + connection->remote() + ": " + error.what());
    connection->close();
    co_return;
  } catch (const asio::system_error&) {
    connection->close();
    co_return;
  }
  co_await serve(peer, lane, std::move(connection));
}

// ---- either way ----

asio::awaitable<void> PeerMesh::serve(MemberIndex peer, std::size_t lane, ConnectionPtr connection) {
  auto& place = peers_[peer].lanes[lane];
  if (place) place->close();  // the peer knows better than we do that the old one is dead
  place = connection;
  handler_.on_lane_up(peer, lane);
  try {
    for (;;) take(peer, co_await connection->receive(frame_limit_, &*chunks_));
  } catch (const Error& error) {
    stranger_line_("dropped a connection of " + peers_[peer].name + " (" + connection->remote() +
                   "): " + error.what());
    if (++peers_[peer].breaches >= most_breaches) handler_.on_broken_peer(peer, error.what());
  } catch (const asio::system_error&) {
    // A broken lane is dialled again; a peer that stays away is noticed by `lost`.
  }
  connection->close();
  if (place == connection) {
    place = nullptr;
    peers_[peer].last_up = clock_.now();
  }
}

void PeerMesh::take(MemberIndex peer, Connection::Received frame) {
  if (frame.type != FrameType::chunk && frame.type != FrameType::ack) {
    throw Error(ErrorKind::network, "a frame that has no place on a bulk connection");
  }
  if (frame.type == FrameType::ack) return handler_.on_ack(peer, frame.head.view, key_of(frame.head));
  const auto problem = handler_.on_chunk(peer, frame.head, std::move(frame.body));
  if (problem) throw Error(ErrorKind::network, *problem);
}

}  // namespace isthmus::outer_sync::transport
