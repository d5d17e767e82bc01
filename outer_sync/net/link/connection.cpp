#include "net/link/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "net/link/run_secret.h"
#include "net/link/spawn.h"
#include "tls/stream.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;

namespace {

constexpr auto farewell_limit = std::chrono::seconds(1);
constexpr const char* is_revoked = "its certificate has been revoked";

/// A dual-stack listener sees IPv4 addresses mapped to IPv6: maps them back.
asio::ip::address plain(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

std::string name_of(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "unknown" : Address{plain(endpoint.address()).to_string(), endpoint.port()}.to_string();
}

void set_options(asio::ip::tcp::socket& socket, const LinkOptions& link) {
  asio::error_code error;
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  const int handle = socket.native_handle();
  give_up_after(handle, link.give_up);
  hold_unsent_at_most(handle, Connection::first_unsent);
}

std::string source_of(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  const auto address = plain(endpoint.address());
  if (address.is_v4()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::make_address_v6(bytes).to_string();
}

asio::awaitable<void> write_all(ConnectionPtr connection) { co_await connection->write_loop(); }

bool stays_here(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto other = socket.remote_endpoint(error);
  return error || plain(other.address()).is_loopback();
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, WireCounters& counters, LinkOptions link, Trace& trace,
                       OtherEnd other)
    : socket_(std::move(socket)),
      credentials_(std::move(link.credentials)),
      connections_(std::move(link.connections)),
      secret_(std::move(link.secret)),
      other_(std::move(other)),
      introduced_(!credentials_ && !secret_),
      remote_(name_of(socket_)),
      congestion_(link.congestion),
      counters_(counters),
      hold_(link.hold),
      hello_limit_(link.hello_limit),
      trace_(trace),
      wake_(socket_.get_executor()),
      written_(socket_.get_executor(), Clock::time_point::max()),
      introducing_(socket_.get_executor(), Clock::time_point::max()) {
  set_options(socket_, link);
  source_ = source_of(socket_);
  loopback_ = stays_here(socket_);
  if (!loopback_) use_congestion_control(socket_.native_handle(), congestion_);
  wake_.expires_at(Clock::time_point::max());
  if (credentials_) {
    const auto side = other_.dialled ? tls::Side::dialled : tls::Side::accepted;
    tls_ = std::make_unique<tls::Stream>(socket_, *credentials_, side, other_.may_be_newcomer);
  }
  connections_->add(this);
}

Connection::~Connection() { connections_->remove(this); }

void Connections::drop_revoked() const {
  for (auto* connection : all_) {
    if (connection->open() && connection->peer_is_revoked()) connection->drop(is_revoked);
  }
}

std::string Connection::peer_name() const { return tls_ ? tls_->peer() : std::string(); }
std::optional<tls::Role> Connection::peer_role() const { return tls_ ? tls_->role() : std::nullopt; }

std::string Connection::holder() const {
  const auto name = peer_name();
  return name.empty() ? source_ : name;
}

bool Connection::newcomer() const { return tls_ && tls_->newcomer(); }

bool Connection::peer_is_revoked() const {
  return tls_ && introduced_ && !newcomer() && credentials_->revoked(tls_->serial());
}

void Connection::send(Frame frame, Clock::duration hold) {
  if (closing_ || !open()) return;
  queued_bytes_ += size_of(frame);
  const auto release = Clock::now() + hold_ + hold;
  queue_.push_back({queue_.empty() ? release : std::max(release, queue_.back().release), std::move(frame)});
  wake_.cancel();
}

bool Connection::ready() const {
  const bool busy = writing_ || (!queue_.empty() && queue_.front().release <= Clock::now());
  return introduced_ && !busy && !closing_ && open();
}

void Connection::hold_unsent_at_most(std::uint32_t bytes) {
  transport::hold_unsent_at_most(socket_.native_handle(), bytes);
}

void Connection::renew_congestion_control() {
  const int handle = socket_.native_handle();
  if (loopback_ || congestion_ == "system" || !use_congestion_control(handle, "reno")) return;
  use_congestion_control(handle, congestion_);
}

bool Connection::pace(std::uint64_t bytes_per_second) {
  return transport::pace(socket_.native_handle(), bytes_per_second);
}

void Connection::close_when_sent() {
  closing_ = true;
  wake_.cancel();
}

asio::awaitable<asio::ip::tcp::socket> Connection::release() {
  const auto self = shared_from_this();
  while (open() && (writing_ || !queue_.empty())) {
    asio::error_code woken;
    co_await written_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  if (!open()) throw asio::system_error(asio::error::connection_reset);
  auto socket = std::move(socket_);
  close();  // ends the writer
  co_return socket;
}

void Connection::close() {
  closing_ = true;
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  wake_.cancel();
  written_.cancel();
  introducing_.cancel();
  when_ready_ = nullptr;
}

void Connection::drop(const std::string& why) {
  if (open() && dropped_.empty()) dropped_ = why;
  close();
}

asio::awaitable<void> Connection::drained() {
  const auto self = shared_from_this();
  while (open() && (writing_ || (!queue_.empty() && queue_.front().release <= Clock::now()))) {
    asio::error_code woken;
    co_await written_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
}

bool Connection::hung_up() {
  if (!open()) return true;
  char next = 0;
  const auto count = ::recv(socket_.native_handle(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/// A dialled process must have the coordinator's role or a member's: observers give no state and no chunks.
void Connection::check_role_of_dialled() const {
  const auto role = tls_->role();
  const bool meant = tls::usual_role(other_.name) == tls::Role::coordinates ? role == tls::Role::coordinates
                                                                            : role && tls::is_member(*role);
  if (!meant)
    throw Error(ErrorKind::network,
                "the certificate of '" + other_.name + "' has role " +
                    (role ? tls::to_string(*role) : "none") +
                    ", which a process dialled by this name cannot have; issue another one with --role");
}

/// Authenticates before anything else; if that fails, drops the connection with the reason.
asio::awaitable<void> Connection::shake_hands() {
  try {
    const Watchdog watchdog(shared_from_this(), hello_limit_ + 2 * hold_);
    if (tls_) {
      co_await show_certificates();
    } else {
      co_await show_secret(socket_, *secret_, other_.dialled ? &other_.name : nullptr);
    }
    introduced_ = true;
    trusted_ = !newcomer();
    introducing_.cancel();
  } catch (const Error& error) {
    drop(error.what());
  }
}

asio::awaitable<void> Connection::show_certificates() {
  co_await tls_->handshake();
  if (!other_.name.empty() && tls_->peer() != other_.name) {
    throw Error(ErrorKind::network,
                "its certificate is for '" + tls_->peer() + "', not for '" + other_.name + "'");
  }
  // The handshake used the revocation list from its beginning.
  if (!newcomer() && credentials_->revoked(tls_->serial())) throw Error(ErrorKind::network, is_revoked);
  if (!other_.name.empty()) check_role_of_dialled();
}

asio::awaitable<void> Connection::introduced() {
  while (!introduced_ && open()) {
    asio::error_code woken;
    co_await introducing_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  if (!dropped_.empty()) throw Dropped(dropped_);
}

asio::awaitable<void> Connection::wait_for_the_other_end() {
  asio::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  const auto until = Clock::now() + farewell_limit + 2 * hold_;
  while (open() && Clock::now() < until) {
    wake_.expires_at(until);
    co_await wake_.async_wait(asio::redirect_error(use_awaitable, ignored));
  }
}

asio::awaitable<void> Connection::write_loop() {
  const auto self = shared_from_this();  // the queue must outlive the write in progress
  try {
    if (!introduced_) co_await shake_hands();
    while (open()) {
      if (queue_.empty()) {
        if (closing_) break;
        wake_.expires_at(Clock::time_point::max());
        asio::error_code woken;
        co_await wake_.async_wait(asio::redirect_error(use_awaitable, woken));
        continue;
      }
      if (const auto release = queue_.front().release; release > Clock::now()) {
        wake_.expires_at(release);
        asio::error_code woken;
        co_await wake_.async_wait(asio::redirect_error(use_awaitable, woken));
        continue;
      }
      const auto frame = std::move(queue_.front().frame);
      queue_.pop_front();
      queued_bytes_ -= size_of(frame);
      writing_ = true;
      co_await write(frame);
      writing_ = false;
      written_.cancel();
      if (const auto call = when_ready_; call && ready())
        call();  // it may close the connection, which destroys the callback
    }
    if (open()) co_await wait_for_the_other_end();
  } catch (const asio::system_error&) {
    // The reader sees the same end of the connection and reports it.
  } catch (const std::exception& error) {
    drop(std::string("nothing more can be sent to it: ") + error.what());
  }
  close();
}

asio::awaitable<void> Connection::write(const Frame& frame) {
  const auto body_size = frame.body ? frame.body->size() : 0;
  const auto front = front_of(frame, tls_ == nullptr);
  const std::array<asio::const_buffer, 3> buffers{
      asio::buffer(front.bytes().data(), front.bytes().size()), asio::buffer(frame.head),
      frame.body ? asio::buffer(*frame.body) : asio::const_buffer()};
  const auto begin = Clock::now();
  if (tls_) {
    co_await tls_->write(buffers);
  } else {
    co_await asio::async_write(socket_, buffers, use_awaitable);
  }
  if (frame.type == FrameType::chunk) trace_.complete(Trace::Row::send, "chunk", begin, Clock::now());
  counters_.total += asio::buffer_size(buffers);
  (frame.type == FrameType::state_data ? counters_.state : counters_.payload) += body_size;
}

asio::awaitable<void> Connection::fill(FrameReader& reader) {
  const auto wanted = reader.wants();
  std::array<asio::mutable_buffer, std::tuple_size_v<FrameReader::Wanted>> buffers;
  std::ranges::transform(wanted, buffers.begin(),
                         [](auto bytes) { return asio::buffer(bytes.data(), bytes.size()); });
  try {
    if (tls_) {
      co_await tls_->read(buffers);
    } else {
      co_await asio::async_read(socket_, buffers, use_awaitable);
    }
  } catch (const asio::system_error&) {
    if (dropped_.empty()) throw;
    throw Dropped(dropped_);
  }
  reader.filled();
}

asio::awaitable<Connection::Received> Connection::receive(std::size_t limit, const BufferPool* chunks) {
  if (!introduced_) co_await introduced();
  FrameReader reader(limit, checked_, chunks);
  co_await fill(reader);
  const auto begin = Clock::now();
  while (!reader.complete()) co_await fill(reader);
  checked_ = reader.checked();
  auto frame = reader.take();
  if (frame.type == FrameType::chunk) trace_.complete(Trace::Row::receive, "chunk", begin, Clock::now());
  co_return frame;
}

ConnectionPtr start_connection(asio::ip::tcp::socket socket, WireCounters& counters, const LinkOptions& link,
                               Trace& trace, OtherEnd other) {
  auto connection = std::make_shared<Connection>(std::move(socket), counters, link, trace, std::move(other));
  spawn(connection->executor(), "the connection with " + connection->remote(), write_all(connection));
  return connection;
}

Watchdog::Watchdog(const ConnectionPtr& connection, Connection::Clock::duration limit,
                   std::function<void()> closed)
    : timer_(connection->executor(), limit) {
  timer_.async_wait([connection, closed = std::move(closed)](const asio::error_code& error) {
    if (error) return;
    connection->close();
    if (closed) closed();
  });
}

void UnknownConnections::add(const ConnectionPtr& connection) {
  waiting_.push_back(connection);
  make_room(false);
  make_room(true);
}

void UnknownConnections::make_room(bool trusted) {
  const auto counts = [&](const auto& connection) { return connection->is_trusted() == trusted; };
  if (static_cast<std::size_t>(std::ranges::count_if(waiting_, counts)) <= most) return;
  std::map<std::string, std::size_t> held;
  std::size_t largest = 0;
  for (const auto& connection : waiting_) {
    if (counts(connection)) largest = std::max(largest, ++held[connection->holder()]);
  }
  const auto oldest = std::ranges::find_if(waiting_, [&](const auto& connection) {
    return counts(connection) && held[connection->holder()] == largest;
  });
  (*oldest)->drop("it was displaced by newer unauthenticated connections");
  waiting_.erase(oldest);
}

}  // namespace isthmus::outer_sync::transport
