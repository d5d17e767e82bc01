#pragma once
// TLS over a connected socket.

#include <array>
#include <asio/awaitable.hpp>
#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ssl/stream.hpp>
#include <optional>
#include <string>

#include "tls/credentials.h"

namespace isthmus::outer_sync::tls {

enum class Side { dialled, accepted };

class Stream {
 public:
  /// The socket must outlive the stream; the credentials need not. `admits_newcomers`: an end that connects
  /// may present no certificate.
  Stream(asio::ip::tcp::socket& socket, const Credentials& own, Side side, bool admits_newcomers = false);

  /// Authenticates both ends and sets `peer`, `role` and `serial`, or `newcomer`. Throws Error(network) with
  /// the problem in words. An end may notice only at its next read that the other has rejected it.
  [[nodiscard]] asio::awaitable<void> handshake();
  /// Fill or send all buffers.
  [[nodiscard]] asio::awaitable<void> read(std::array<asio::mutable_buffer, 4> buffers);
  [[nodiscard]] asio::awaitable<void> write(std::array<asio::const_buffer, 3> buffers);

  [[nodiscard]] const std::string& peer() const { return peer_; }  ///< name in the other end's certificate
  [[nodiscard]] const std::string& serial() const { return serial_; }  ///< in its certificate, hexadecimal
  [[nodiscard]] std::optional<Role> role() const { return role_; }     ///< in its certificate
  /// The other end has presented no certificate, so it is not authenticated.
  [[nodiscard]] bool newcomer() const { return newcomer_; }

 private:
  asio::ssl::stream<asio::ip::tcp::socket&> stream_;
  Side side_;
  bool admits_newcomers_, newcomer_ = false;
  std::string run_, peer_, serial_;
  std::optional<Role> role_;
};

}  // namespace isthmus::outer_sync::tls
