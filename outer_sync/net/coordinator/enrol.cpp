#include "isthmus/outer_sync/net/coordinator/enrol.h"

#include <algorithm>
#include <array>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/ssl.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <exception>
#include <optional>

#include "isthmus/base/error.h"
#include "net/link/listen.h"
#include "net/wire/frame.h"
#include "net/wire/frame_reader.h"
#include "tls/openssl.h"

namespace isthmus::outer_sync {

namespace {

using asio::use_awaitable;
using transport::Frame;
using transport::FrameReader;
using transport::FrameType;
using Store = std::unique_ptr<X509_STORE, tls::Free<X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, tls::Free<X509_STORE_CTX_free>>;

/// A config, three certificates and a revocation list.
constexpr std::size_t longest_answer = std::size_t{2} << 20;
constexpr auto dial_limit = std::chrono::seconds(10);

/// The token has only the authority's fingerprint; the certificate itself is in the chain that the
/// coordinator presents.
struct Expected {
  Digest authority;
  bool found = false;
};

int verify(X509_STORE_CTX* shown, void* argument) {
  auto& expected = *static_cast<Expected*>(argument);
  auto* chain = X509_STORE_CTX_get0_untrusted(shown);
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    X509* root = sk_X509_value(chain, i);
    if (tls::fingerprint_of(root) != expected.authority) continue;
    expected.found = true;
    const Store store(X509_STORE_new());
    const StoreContext check(X509_STORE_CTX_new());
    const bool ready =
        store && check && X509_STORE_add_cert(store.get(), root) == 1 &&
        X509_STORE_CTX_init(check.get(), store.get(), X509_STORE_CTX_get0_cert(shown), chain) == 1 &&
        X509_STORE_CTX_set_purpose(check.get(), X509_PURPOSE_SSL_SERVER) == 1;
    const bool good = ready && X509_verify_cert(check.get()) == 1;
    X509_STORE_CTX_set_error(shown, good ? X509_V_OK : X509_STORE_CTX_get_error(check.get()));
    return good ? 1 : 0;
  }
  X509_STORE_CTX_set_error(shown, X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT);
  return 0;
}

class Newcomer {
 public:
  explicit Newcomer(const tls::JoinToken& token)
      : token_(token), expected_{.authority = token.authority}, context_(asio::ssl::context::tls) {
    auto* context = context_.native_handle();
    tls::need(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "TLS 1.3");
    context_.set_verify_mode(asio::ssl::verify_peer);
    SSL_CTX_set_cert_verify_callback(context, verify, &expected_);
  }

  asio::awaitable<Enrolled> call(const Address& address, const tls::EnrolmentRequest& request) {
    asio::ip::tcp::socket socket(co_await asio::this_coro::executor);
    if (const auto error = co_await transport::dial(socket, address, dial_limit))
      throw Error(ErrorKind::network, error.message());
    const auto own = socket.local_endpoint().address().to_string();
    asio::ssl::stream<asio::ip::tcp::socket> stream(std::move(socket), context_);
    co_await shake_hands(stream);
    const Frame frame{FrameType::enrolment, to_bytes(request), nullptr};
    const auto front = transport::front_of(frame, false);
    const std::array<asio::const_buffer, 2> out{asio::buffer(front.bytes().data(), front.bytes().size()),
                                                asio::buffer(frame.head)};
    co_await asio::async_write(stream, out, use_awaitable);
    auto answer = co_await handle(stream);
    if (!answer.accepted())
      throw Error(ErrorKind::network,
                  "it refuses this token: used, expired or replaced, see the coordinator's log. Ask for "
                  "a new one: isthmus certs invite " +
                      token_.run + " " + token_.name);
    co_return Enrolled{.answer = std::move(answer), .coordinator = address, .own_address = own};
  }

 private:
  asio::awaitable<void> shake_hands(asio::ssl::stream<asio::ip::tcp::socket>& stream) {
    asio::error_code error;
    co_await stream.async_handshake(asio::ssl::stream_base::client,
                                    asio::redirect_error(use_awaitable, error));
    if (error && !expected_.found && stream.native_handle() != nullptr &&
        SSL_get_verify_result(stream.native_handle()) == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT)
      throw Error(ErrorKind::network,
                  "the process there is not of the authority that the token names (" +
                      token_.authority.hex() +
                      "), so nothing was sent; check the address, and whether the connection is intercepted");
    if (error) throw Error(ErrorKind::network, "TLS failed: " + error.message());
    const tls::Certificate shown(SSL_get1_peer_certificate(stream.native_handle()));
    if (!shown) throw Error(ErrorKind::network, "it presented no certificate");
    const auto name = tls::subject_entry(shown.get(), NID_commonName);
    const auto run = tls::subject_entry(shown.get(), NID_organizationName);
    if (name != tls::coordinator_name || run != token_.run)
      throw Error(ErrorKind::network, "its certificate is for '" + name + "' of run '" + run +
                                          "', not for '" + tls::coordinator_name + "' of run '" + token_.run +
                                          "'");
  }

  static asio::awaitable<tls::EnrolmentAnswer> handle(asio::ssl::stream<asio::ip::tcp::socket>& stream) {
    FrameReader reader(longest_answer, false);
    while (!reader.complete()) {
      std::array<asio::mutable_buffer, std::tuple_size_v<FrameReader::Wanted>> in;
      std::ranges::transform(reader.wants(), in.begin(),
                             [](auto bytes) { return asio::buffer(bytes.data(), bytes.size()); });
      asio::error_code error;
      co_await asio::async_read(stream, in, asio::redirect_error(use_awaitable, error));
      if (error)
        throw Error(ErrorKind::network,
                    "it closed the connection without an answer (" + error.message() +
                        "): it has no open invitation, or was stopped; see the coordinator's log");
      reader.filled();
    }
    const auto frame = reader.take();
    if (frame.type != FrameType::enrolment)
      throw Error(ErrorKind::network, "it sent an unexpected reply to the enrolment request");
    co_return from_bytes<tls::EnrolmentAnswer>(*frame.body);
  }

  const tls::JoinToken& token_;
  Expected expected_;
  asio::ssl::context context_;
};

}  // namespace

Enrolled enrol(const tls::JoinToken& token, const tls::EnrolmentRequest& request,
               std::chrono::steady_clock::duration limit) {
  std::string failures;
  const auto until = std::chrono::steady_clock::now() + limit;
  for (const auto& address : parse_addresses(token.coordinator, "the token's coordinator")) {
    Newcomer newcomer(token);  // outlives the coroutines that use it
    asio::io_context io;
    std::optional<Enrolled> enrolled;
    std::string why = "no answer in time";
    asio::co_spawn(io, newcomer.call(address, request), [&](const std::exception_ptr& failed, Enrolled got) {
      try {
        if (failed) std::rethrow_exception(failed);
        enrolled = std::move(got);
      } catch (const std::exception& error) {
        why = error.what();
      }
    });
    io.run_until(until);
    if (enrolled) return std::move(*enrolled);
    failures += (failures.empty() ? "" : "; ") + address.to_string() + ": " + why;
  }
  throw Error(ErrorKind::network, "cannot join run '" + token.run + "' through " + failures);
}

}  // namespace isthmus::outer_sync
