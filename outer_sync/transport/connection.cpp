#include "transport/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/transport/address.h"
#include "tls/stream.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;

namespace {

constexpr std::size_t most_unknown = 64;

/// As a listener for both kinds of addresses sees IPv4.
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
  hold_unsent_at_most(handle, Connection::least_unsent);
}

bool stays_here(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto other = socket.remote_endpoint(error);
  return error || plain(other.address()).is_loopback();
}

bool has_chunk_header(FrameType type) {
  return type == FrameType::chunk || type == FrameType::ack || type == FrameType::relay_taken;
}

/// What a relay carries, or says of itself.
bool may_be_relayed(FrameType type) {
  return type == FrameType::begun || type == FrameType::begun_heard || type == FrameType::hail ||
         type == FrameType::relay_lost || has_chunk_header(type);
}

/// What is wrong with the header of a chunk or an acknowledgement that `length` bytes follow.
std::optional<std::string> problem_of(FrameType type, const ChunkHeader& header, std::size_t length) {
  const bool ack = type != FrameType::chunk;
  const bool is_contribution = header.kind == static_cast<std::uint8_t>(protocol::ChunkKind::contribution);
  const std::size_t ids = header.contributors;
  if (ack && length > 0) return "an acknowledgement with " + std::to_string(length) + " bytes behind it";
  const std::size_t norms = header.norms;
  if (header.zero != 0) return "a chunk header with bits that mean nothing yet";
  if (header.weight != 0 && (ack || !is_contribution)) return "a weight of what is no contribution";
  if (ids > 0 && (ack || is_contribution)) return "contributors of what is no result";
  if (norms > 0 && (ack || is_contribution)) return "norms of what is no result";
  if (norms > protocol::most_members || norms * sizeof(protocol::SquaredNorm) > length) {
    return std::to_string(norms) + " norms in a chunk frame; at most " +
           std::to_string(protocol::most_members) + ", and no more than fit, can be legal";
  }
  length -= norms * sizeof(protocol::SquaredNorm);
  if (ids > protocol::most_members || ids * sizeof(protocol::ReplicaId) > length) {
    return std::to_string(ids) + " contributors in a chunk frame; at most " +
           std::to_string(protocol::most_members) + ", and no more than fit, can be legal";
  }
  return std::nullopt;
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, WireCounters& counters, LinkOptions link, Trace& trace,
                       OtherEnd other)
    : socket_(std::move(socket)),
      credentials_(std::move(link.credentials)),
      other_(std::move(other)),
      introduced_(!credentials_),
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
  loopback_ = stays_here(socket_);
  if (!loopback_) use_congestion_control(socket_.native_handle(), congestion_);
  wake_.expires_at(Clock::time_point::max());
  if (!credentials_) return;
  const auto side = other_.dialled ? tls::Side::dialled : tls::Side::accepted;
  tls_ = std::make_unique<tls::Stream>(socket_, *credentials_, side);
}

Connection::~Connection() = default;

std::string Connection::peer_name() const { return tls_ ? tls_->peer() : std::string(); }

bool Connection::peer_is_revoked() const {
  return tls_ && introduced_ && credentials_->revoked(tls_->serial());
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

/// Before anything else; leaves the connection closed, and why, when it fails.
asio::awaitable<void> Connection::shake_hands() {
  try {
    const Watchdog watchdog(shared_from_this(), hello_limit_ + 2 * hold_);
    co_await tls_->handshake();
    if (!other_.name.empty() && tls_->peer() != other_.name) {
      throw Error(ErrorKind::network,
                  "its certificate is of '" + tls_->peer() + "', not of '" + other_.name + "'");
    }
    introduced_ = true;
    introducing_.cancel();
  } catch (const Error& error) {
    refused_ = error.what();
    close();
  }
}

asio::awaitable<void> Connection::introduced() {
  while (!introduced_ && open()) {
    asio::error_code woken;
    co_await introducing_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
  if (!refused_.empty()) throw Error(ErrorKind::network, refused_);
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
      if (const auto call = when_ready_; call && ready()) call();  // which may close, and so forget it
    }
  } catch (const asio::system_error&) {
    // The reader sees the same end of the connection and says so.
  }
  close();
}

asio::awaitable<void> Connection::write(const Frame& frame) {
  const auto body_size = frame.body ? frame.body->size() : 0;
  const FrameHeader header{.type = frame.type,
                           .length = static_cast<std::uint32_t>(size_of(frame) - sizeof(FrameHeader))};
  const std::array<asio::const_buffer, 3> buffers{
      asio::buffer(&header, sizeof header), asio::buffer(frame.head),
      frame.body ? asio::buffer(*frame.body) : asio::const_buffer()};
  const auto begin = Clock::now();
  if (tls_) {
    co_await tls_->write(buffers);
  } else {
    co_await asio::async_write(socket_, buffers, use_awaitable);
  }
  if (frame.type == FrameType::chunk) trace_.complete(Trace::Row::send, "chunk", begin, Clock::now());
  counters_.total += size_of(frame);
  (frame.type == FrameType::state_data ? counters_.state : counters_.payload) += body_size;
}

asio::awaitable<void> Connection::read(std::array<asio::mutable_buffer, 3> buffers) {
  if (tls_) {
    co_await tls_->read(buffers);
  } else {
    co_await asio::async_read(socket_, buffers, use_awaitable);
  }
}

asio::awaitable<FrameHeader> Connection::read_header(std::size_t limit) {
  FrameHeader header;
  const std::array<asio::mutable_buffer, 3> buffers{asio::buffer(&header, sizeof header)};
  co_await read(buffers);
  if (header.magic != FrameHeader::expected_magic || header.zero != 0)
    throw Error(ErrorKind::network, "what it sent is no frame of this protocol");
  if (header.type == FrameType::relayed) limit += sizeof(RelayHeader);
  if (header.length > limit) {
    throw Error(ErrorKind::network, "a frame of " + std::to_string(header.length) + " bytes; at most " +
                                        std::to_string(limit) + " can be legal here");
  }
  co_return header;
}

asio::awaitable<RelayHeader> Connection::read_relay_header(std::size_t length) {
  RelayHeader header{};
  if (length < sizeof header) throw Error(ErrorKind::network, "a relayed frame without its header");
  const std::array<asio::mutable_buffer, 3> buffers{asio::buffer(&header, sizeof header)};
  co_await read(buffers);
  if (header.zero != 0 || !may_be_relayed(header.inner))
    throw Error(ErrorKind::network, "a frame that no member may carry for others");
  co_return header;
}

asio::awaitable<Connection::Received> Connection::receive(std::size_t limit, const BufferPool* chunks) {
  if (!introduced_) co_await introduced();
  const auto header = co_await read_header(limit);
  const auto begin = Clock::now();
  Received received{header.type, {}, {}, nullptr};
  std::size_t body_size = header.length;
  if (header.type == FrameType::relayed) {
    received.relay = co_await read_relay_header(body_size);
    received.type = received.relay->inner;
    body_size -= sizeof(RelayHeader);
  }
  if (has_chunk_header(received.type) && (received.relay || received.type != FrameType::relay_taken)) {
    if (body_size < sizeof received.head) throw Error(ErrorKind::network, "a chunk frame without its header");
    const std::array<asio::mutable_buffer, 3> head{asio::buffer(&received.head, sizeof received.head)};
    co_await read(head);
    body_size -= sizeof received.head;
    if (const auto problem = problem_of(received.type, received.head, body_size))
      throw Error(ErrorKind::network, *problem);
    received.contributors.resize(received.head.contributors);
    received.norms.resize(received.head.norms);
    body_size -= received.contributors.size() * sizeof(protocol::ReplicaId) +
                 received.norms.size() * sizeof(protocol::SquaredNorm);
  }
  const bool pooled = chunks != nullptr && received.type == FrameType::chunk;
  const auto body = pooled ? chunks->take(body_size) : std::make_shared<Bytes>(body_size);
  const std::array<asio::mutable_buffer, 3> buffers{asio::buffer(received.contributors),
                                                    asio::buffer(received.norms), asio::buffer(*body)};
  co_await read(buffers);
  if (received.type == FrameType::chunk) trace_.complete(Trace::Row::receive, "chunk", begin, Clock::now());
  received.body = body;
  co_return received;
}

ConnectionPtr start_connection(asio::ip::tcp::socket socket, WireCounters& counters, const LinkOptions& link,
                               Trace& trace, OtherEnd other) {
  auto connection = std::make_shared<Connection>(std::move(socket), counters, link, trace, std::move(other));
  const auto executor = connection->executor();
  asio::co_spawn(
      executor, [connection] { return connection->write_loop(); }, asio::detached);
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
  if (waiting_.size() >= most_unknown) {
    waiting_.front()->close();
    waiting_.pop_front();
  }
  waiting_.push_back(connection);
}

Frame control_frame(const protocol::ControlMessage& message) {
  return {FrameType::control, encode(message), nullptr};
}

Frame chunk_frame(const protocol::ChunkMessage& message, const protocol::SharedBytes& packed) {
  assert(message.contributors.size() <= protocol::most_members);
  auto head = bytes_of(header_of(message, packed ? quant::Lossless::zstd : quant::Lossless::none));
  const auto ids = std::as_bytes(std::span(message.contributors));
  head.insert(head.end(), ids.begin(), ids.end());
  const auto norms = std::as_bytes(std::span(message.norms));
  head.insert(head.end(), norms.begin(), norms.end());
  return {FrameType::chunk, std::move(head), packed ? packed : message.bytes};
}

protocol::ChunkMessage message_of(Connection::Received chunk) {
  return {.view = chunk.head.view,
          .key = key_of(chunk.head),
          .bytes = std::move(chunk.body),
          .weight = chunk.head.weight,
          .contributors = std::move(chunk.contributors),
          .norms = std::move(chunk.norms)};
}

Frame ack_frame(protocol::ViewNumber view, const protocol::ChunkKey& key) {
  return {FrameType::ack, bytes_of(header_of(view, key)), nullptr};
}

Frame relayed_frame(protocol::ReplicaId from, protocol::ReplicaId to, Frame frame, std::uint32_t session) {
  auto head = bytes_of(RelayHeader{.from = from, .to = to, .inner = frame.type, .session = session});
  head.insert(head.end(), frame.head.begin(), frame.head.end());
  return {FrameType::relayed, std::move(head), std::move(frame.body)};
}

Frame frame_of(const Connection::Received& received) {
  Frame frame{received.type, {}, received.body};
  if (!has_chunk_header(received.type)) return frame;
  frame.head = bytes_of(received.head);
  const auto ids = std::as_bytes(std::span(received.contributors));
  frame.head.insert(frame.head.end(), ids.begin(), ids.end());
  const auto norms = std::as_bytes(std::span(received.norms));
  frame.head.insert(frame.head.end(), norms.begin(), norms.end());
  return frame;
}

Frame begun_frame(protocol::ViewNumber view) { return {FrameType::begun, to_bytes(view), nullptr}; }
Frame begun_heard_frame(protocol::ViewNumber view) {
  return {FrameType::begun_heard, to_bytes(view), nullptr};
}

}  // namespace isthmus::outer_sync::transport
