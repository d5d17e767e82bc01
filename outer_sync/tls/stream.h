#pragma once
// TLS over a connected socket.

#include <array>
#include <asio/awaitable.hpp>
#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ssl/stream.hpp>
#include <string>

#include "tls/credentials.h"

namespace isthmus::outer_sync::tls {

enum class Side { dialled, accepted };

class Stream {
 public:
  /// The socket must outlive the stream; the credentials need not.
  Stream(asio::ip::tcp::socket& socket, const Credentials& own, Side side)
      : stream_(socket, own.context()), side_(side), run_(own.run()) {}

  /// Both ends have shown who they are: then `peer` and `serial` are set. Throws Error(network) with what was
  /// wrong, in words for people. One of them may learn only when it reads that the other does not believe it.
  [[nodiscard]] asio::awaitable<void> handshake();
  /// Fills all, sends all.
  [[nodiscard]] asio::awaitable<void> read(std::array<asio::mutable_buffer, 4> buffers);
  [[nodiscard]] asio::awaitable<void> write(std::array<asio::const_buffer, 3> buffers);

  [[nodiscard]] const std::string& peer() const { return peer_; }      ///< name in its certificate
  [[nodiscard]] const std::string& serial() const { return serial_; }  ///< of that, hexadecimal

 private:
  asio::ssl::stream<asio::ip::tcp::socket&> stream_;
  Side side_;
  std::string run_, peer_, serial_;
};

}  // namespace isthmus::outer_sync::tls
