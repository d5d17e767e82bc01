#pragma once
// A blocking TLS connection on which a test can send anything.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/ssl.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "isthmus/outer_sync/core/address.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync {

/// A blocking client that shows any certificate or none and does not verify the other end.
class RawTls {
 public:
  RawTls(const std::string& address, const std::filesystem::path& certificate)
      : context_(asio::ssl::context::tls_client) {
    if (!certificate.empty()) {
      context_.use_certificate_chain_file((certificate / "cert.pem").string());
      context_.use_private_key_file((certificate / "cert.pem").string(), asio::ssl::context::pem);
    }
    stream_.emplace(io_, context_);
    const auto to = parse_address(address, "address");
    stream_->next_layer().connect({asio::ip::make_address(to.host), to.port});
    timeval limit{.tv_sec = 20, .tv_usec = 0};  // so that a test fails instead of hanging
    ::setsockopt(stream_->next_layer().native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    asio::error_code ignored;  // the other end may refuse the handshake
    stream_->handshake(asio::ssl::stream_base::client, ignored);
  }
  void say(const transport::Frame& frame) {
    const transport::FrameHeader header{.type = frame.type,
                                        .length = static_cast<std::uint32_t>(frame.head.size())};
    asio::error_code ignored;
    asio::write(*stream_, asio::buffer(&header, sizeof header), ignored);
    asio::write(*stream_, asio::buffer(frame.head), ignored);
  }
  /// Sends raw bytes within TLS.
  void say(std::span<const std::byte> bytes) {
    asio::error_code ignored;
    asio::write(*stream_, asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  /// Sends raw bytes past TLS, as if the stream were corrupted.
  void say_beside(std::span<const std::byte> bytes) {
    asio::error_code ignored;
    asio::write(stream_->next_layer(), asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  [[nodiscard]] int handle() { return stream_->next_layer().native_handle(); }
  /// The next frame; nullopt once the other end has closed. Throws if neither comes within 20 s.
  std::optional<transport::Frame> receive() {
    transport::FrameHeader header;
    asio::error_code error;
    asio::read(*stream_, asio::buffer(&header, sizeof header), error);
    if (failed(error)) return std::nullopt;
    transport::Frame frame{header.type, Bytes(header.length), nullptr};
    asio::read(*stream_, asio::buffer(frame.head), error);
    if (failed(error)) return std::nullopt;
    return frame;
  }

  /// Reads until the other end closes the connection. Throws if it stays silent for 20 s.
  bool is_dropped() {
    while (receive()) {
    }
    return true;
  }

 private:
  static bool failed(const asio::error_code& error) {
    if (error == asio::error::would_block || error == asio::error::try_again)
      throw std::runtime_error("neither an answer nor the end of the connection came");
    return static_cast<bool>(error);
  }

  asio::io_context io_;
  asio::ssl::context context_;
  std::optional<asio::ssl::stream<asio::ip::tcp::socket>> stream_;
};

}  // namespace isthmus::outer_sync
