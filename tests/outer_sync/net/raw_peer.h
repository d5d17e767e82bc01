#pragma once
// A blocking connection on which a test can send anything, to play strangers and members that break the
// protocol.

#include <poll.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/core/address.h"
#include "net/link/connection.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync {

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random_bits(6, seed, i));
  return bytes;
}

inline Bytes header_bytes(transport::FrameType type, std::uint32_t length) {
  return transport::bytes_of(transport::FrameHeader{.type = type, .length = length});
}

/// Listens on loopback for connections that a RawPeer accepts.
class RawListener {
 public:
  explicit RawListener(const std::string& address = "127.0.0.1:0") : acceptor_(io_) {
    const auto at = parse_address(address, "address");
    const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(at.host), at.port);
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
  }
  [[nodiscard]] std::string address() const {
    const auto endpoint = acceptor_.local_endpoint();
    return Address{endpoint.address().to_string(), endpoint.port()}.to_string();
  }

 private:
  friend class RawPeer;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
};

class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : socket_(io_) {
    const auto to = parse_address(address, "address");
    socket_.connect({asio::ip::make_address(to.host), to.port});
  }
  /// Accepts the listener's next connection. Throws if none comes in time.
  explicit RawPeer(RawListener& listener) : socket_(io_) {
    pollfd waits{.fd = listener.acceptor_.native_handle(), .events = POLLIN, .revents = 0};
    if (::poll(&waits, 1, patience_ms) != 1) throw std::runtime_error("no connection within 20 s");
    listener.acceptor_.accept(socket_);
  }

  void say(std::span<const std::byte> bytes) {
    asio::error_code ignored;  // the other end may have closed already
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  void say(std::string_view text) { say(std::as_bytes(std::span(text.data(), text.size()))); }
  void say(const transport::Frame& frame) {
    const auto body = frame.body ? *frame.body : Bytes();
    const transport::FrameHeader header{
        .type = frame.type, .length = static_cast<std::uint32_t>(frame.head.size() + body.size())};
    say(std::as_bytes(std::span(&header, 1)));
    say(std::span(frame.head));
    say(std::span(body));
  }
  void say(const protocol::ControlMessage& message) { say(transport::control_frame(message)); }

  /// The next frame, without checking its checksum; nullopt once the other end has closed. Throws if neither
  /// comes in time.
  std::optional<transport::Frame> receive() {
    transport::FrameHeader header;
    if (!read(&header, sizeof header)) return std::nullopt;
    if (transport::Checksum checksum = 0; header.check != 0 && !read(&checksum, sizeof checksum))
      return std::nullopt;
    transport::Frame frame{header.type, Bytes(header.length), nullptr};
    if (!read(frame.head.data(), frame.head.size())) return std::nullopt;
    return frame;
  }
  /// Waits for a control message of this type and skips others.
  template <class Message>
  Message receive_control() {
    while (const auto frame = receive()) {
      const auto message = protocol::decode_control(frame->head);
      if (const auto* wanted = std::get_if<Message>(&message)) return *wanted;
    }
    throw std::runtime_error("the other end hung up");
  }
  /// Reads until the other end closes the connection. Throws if it stays silent.
  bool is_dropped() {
    for (std::byte next{}; read(&next, 1);) {
    }
    return true;
  }
  [[nodiscard]] int handle() { return socket_.native_handle(); }

 private:
  static constexpr int patience_ms = 20'000;  ///< milliseconds; a test must fail instead of hanging

  bool read(void* data, std::size_t size) {
    asio::error_code error;
    for (std::size_t done = 0; done < size && !error;) {
      pollfd waits{.fd = socket_.native_handle(), .events = POLLIN, .revents = 0};
      if (::poll(&waits, 1, patience_ms) != 1)
        throw std::runtime_error("neither an answer nor the end of the connection came");
      done += socket_.read_some(asio::buffer(static_cast<std::byte*>(data) + done, size - done), error);
    }
    return !error;
  }

  asio::io_context io_;
  asio::ip::tcp::socket socket_;
};

}  // namespace isthmus::outer_sync
