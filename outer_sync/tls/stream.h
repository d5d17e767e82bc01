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
  /// The socket must outlive the stream; the credentials need not. `admits_newcomers`: who connects may show
  /// no certificate.
  Stream(asio::ip::tcp::socket& socket, const Credentials& own, Side side, bool admits_newcomers = false);

  /// Both ends have shown who they are: then `peer`, `role` and `serial` are set; or the other is a newcomer.
  /// Throws Error(network) with what was wrong, in words for people. One of them may learn only when it reads
  /// that the other does not believe it.
  [[nodiscard]] asio::awaitable<void> handshake();
  /// Fills all, sends all.
  [[nodiscard]] asio::awaitable<void> read(std::array<asio::mutable_buffer, 4> buffers);
  [[nodiscard]] asio::awaitable<void> write(std::array<asio::const_buffer, 3> buffers);

  [[nodiscard]] const std::string& peer() const { return peer_; }      ///< name in its certificate
  [[nodiscard]] const std::string& serial() const { return serial_; }  ///< of that, hexadecimal
  [[nodiscard]] std::optional<Role> role() const { return role_; }     ///< in its certificate
  /// It has shown no certificate: nobody knows who it is.
  [[nodiscard]] bool newcomer() const { return newcomer_; }

 private:
  asio::ssl::stream<asio::ip::tcp::socket&> stream_;
  Side side_;
  bool admits_newcomers_, newcomer_ = false;
  std::string run_, peer_, serial_;
  std::optional<Role> role_;
};

}  // namespace isthmus::outer_sync::tls
