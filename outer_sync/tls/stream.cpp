#include "tls/stream.h"

#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

namespace isthmus::outer_sync::tls {

using asio::use_awaitable;

Stream::Stream(asio::ip::tcp::socket& socket, const Credentials& own, Side side, bool admits_newcomers)
    : stream_(socket, own.context()),
      side_(side),
      admits_newcomers_(admits_newcomers && side == Side::accepted),
      run_(own.run()) {
  // A certificate is optional, but must be valid if presented.
  if (admits_newcomers_) stream_.set_verify_mode(asio::ssl::verify_peer);
}

asio::awaitable<void> Stream::handshake() {
  asio::error_code error;
  const auto as = side_ == Side::dialled ? asio::ssl::stream_base::client : asio::ssl::stream_base::server;
  co_await stream_.async_handshake(as, asio::redirect_error(use_awaitable, error));
  if (error) {
    const auto verdict = SSL_get_verify_result(stream_.native_handle());
    std::string why = error == asio::error::operation_aborted ? "not in time" : error.message();
    if (verdict != X509_V_OK) why += std::string(": ") + X509_verify_cert_error_string(verdict);
    throw Error(ErrorKind::network, "TLS failed: " + why);
  }
  const Certificate shown(SSL_get1_peer_certificate(stream_.native_handle()));
  newcomer_ = !shown && admits_newcomers_;
  if (newcomer_) co_return;
  if (!shown) throw Error(ErrorKind::network, "TLS failed: it presented no certificate");
  const auto run = subject_entry(shown.get(), NID_organizationName);
  if (run != run_)
    throw Error(ErrorKind::network, "its certificate is for run '" + run + "', not for '" + run_ + "'");
  peer_ = subject_entry(shown.get(), NID_commonName);
  role_ = role_of(shown.get());
  serial_ = text_of(X509_get0_serialNumber(shown.get()));
}

asio::awaitable<void> Stream::read(std::array<asio::mutable_buffer, 4> buffers) {
  co_await asio::async_read(stream_, buffers, use_awaitable);
}

asio::awaitable<void> Stream::write(std::array<asio::const_buffer, 3> buffers) {
  co_await asio::async_write(stream_, buffers, use_awaitable);
}

}  // namespace isthmus::outer_sync::tls
