#include "net/link/listen.h"

#include <algorithm>
#include <asio/ip/v6_only.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <memory>
#include <utility>

#include "isthmus/base/error.h"
#include "net/mailbox/mailbox.h"

namespace isthmus::outer_sync::transport {

namespace {

constexpr auto accept_again_after = std::chrono::milliseconds(100);

/// Errors of the acceptor itself. Linux also reports errors of connections not accepted yet; all others may
/// be temporary.
bool is_of_acceptor(const asio::error_code& error) {
  return error == asio::error::bad_descriptor || error == asio::error::invalid_argument ||
         error == asio::error::not_socket || error == asio::error::fault;
}

/// A temporary lack of resources: reported as a network error, so the process that started this one retries.
bool may_pass(const asio::error_code& error) {
  return error == asio::error::no_descriptors || error == std::errc::too_many_files_open_in_system ||
         error == asio::error::no_buffer_space || error == asio::error::no_memory ||
         error == asio::error::host_not_found_try_again;
}

}  // namespace

asio::ip::tcp::acceptor listen_at(asio::io_context& io, const std::string& address, const std::string& what) {
  const auto wanted = parse_address(address, what);
  const auto refuse = [&](const asio::error_code& error) {
    throw Error(may_pass(error) ? ErrorKind::network : ErrorKind::config,
                "cannot listen at " + wanted.to_string() + " (" + what + "): " + error.message() +
                    "; choose another port, or 0 for any free one");
  };
  asio::error_code error;
  asio::ip::tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(wanted.host, std::to_string(wanted.port), asio::ip::tcp::resolver::passive, error);
  if (error) refuse(error);
  for (const auto& entry : found) {  // a name may have addresses of a family that this machine lacks
    const auto endpoint = entry.endpoint();
    asio::ip::tcp::acceptor acceptor(io);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    // Make [::] accept IPv4 too, regardless of the system's default.
    if (!error && endpoint.address().is_v6() && endpoint.address().is_unspecified())
      acceptor.set_option(asio::ip::v6_only(false), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error) return acceptor;
  }
  refuse(error);
  return asio::ip::tcp::acceptor(io);
}

asio::awaitable<void> accept_all(asio::ip::tcp::acceptor& acceptor,
                                 std::function<void(asio::ip::tcp::socket)> take,
                                 std::function<void(const std::string&)> say) {
  bool said = false;
  for (;;) {
    asio::error_code error;
    auto socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor.is_open()) co_return;
    if (is_of_acceptor(error)) throw asio::system_error(error);
    std::string why;
    if (error) {
      why = error.message();
    } else {
      try {
        take(std::move(socket));
      } catch (const std::exception& failed) {
        why = failed.what();
      }
    }
    if (why.empty()) {
      said = false;
      continue;
    }
    if (!std::exchange(said, true))
      say("cannot accept connections at present: " + why + "; retrying until it works");
    asio::steady_timer pause(acceptor.get_executor(), accept_again_after);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

Address bound_address(const asio::ip::tcp::acceptor& acceptor) {
  const auto endpoint = acceptor.local_endpoint();
  return {endpoint.address().to_string(), endpoint.port()};
}

Address advertised_address(const std::string& advertise, const Address& bound) {
  auto address = advertise.empty() ? bound : parse_address(advertise, "network.advertise");
  if (address.port == 0) address.port = bound.port;
  asio::error_code not_numeric;
  const auto numeric = asio::ip::make_address(address.host, not_numeric);
  if (!not_numeric && numeric.is_unspecified()) {
    throw Error(ErrorKind::config,
                "peers cannot dial " + address.to_string() +
                    "; set network.advertise to the HOST:PORT at which they reach this worker");
  }
  return address;
}

namespace {

asio::awaitable<asio::error_code> connect_to(asio::ip::tcp::socket& socket, asio::ip::tcp::endpoint endpoint,
                                             std::chrono::steady_clock::duration limit) {
  // The handler may already be queued when the timer is destroyed: it must not touch a destroyed socket.
  const auto waiting = std::make_shared<bool>(true);
  bool too_late = false;
  asio::steady_timer timer(socket.get_executor(), limit);
  timer.async_wait([&socket, &too_late, waiting](const asio::error_code& cancelled) {
    if (cancelled || !*waiting) return;
    too_late = true;
    asio::error_code ignored;
    socket.close(ignored);
  });
  asio::error_code error;
  co_await socket.async_connect(endpoint, asio::redirect_error(asio::use_awaitable, error));
  *waiting = false;
  if (too_late) error = asio::error::timed_out;
  co_return error;
}

}  // namespace

asio::awaitable<asio::error_code> connect_to_any(asio::ip::tcp::socket& socket,
                                                 std::vector<asio::ip::tcp::endpoint> endpoints,
                                                 std::chrono::steady_clock::duration limit) {
  asio::error_code error = asio::error::host_not_found;
  const auto count = static_cast<int>(std::max<std::size_t>(endpoints.size(), 1));
  const auto for_one = std::max(limit / count, std::min<decltype(limit)>(limit, min_time_per_address));
  for (const auto& endpoint : endpoints) {
    asio::error_code ignored;
    socket.close(ignored);
    error = co_await connect_to(socket, endpoint, for_one);
    // The caller has closed the socket: it does not want the connection any more.
    if (!error || error == asio::error::operation_aborted) co_return error;
  }
  co_return error;
}

asio::awaitable<asio::error_code> dial(asio::ip::tcp::socket& socket, Address address,
                                       std::chrono::steady_clock::duration limit,
                                       std::shared_ptr<Mailbox> mailbox) {
  asio::error_code error;
  if (const auto name = mailbox_name(address.host)) {
    error = asio::error::host_not_found;
    if (mailbox) error = mailbox->dial(socket, *name);
    co_return error;
  }
  std::vector<asio::ip::tcp::endpoint> endpoints;
  try {
    asio::ip::tcp::resolver resolver(socket.get_executor());
    const auto found = co_await resolver.async_resolve(address.host, std::to_string(address.port),
                                                       asio::redirect_error(asio::use_awaitable, error));
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  } catch (const asio::system_error& failed) {  // the resolver cannot start its thread
    error = failed.code();
  }
  if (error) co_return error;
  co_return co_await connect_to_any(socket, std::move(endpoints), limit);
}

}  // namespace isthmus::outer_sync::transport
