#pragma once
// Listening and dialling: the two ways in which a connection begins.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync::transport {

class Mailbox;

/// Throws Error(config) with the key `what` and the address if it cannot be bound.
[[nodiscard]] asio::ip::tcp::acceptor listen_at(asio::io_context& io, const std::string& address,
                                                const std::string& what);

/// The address that a listener is bound to.
[[nodiscard]] Address bound_address(const asio::ip::tcp::acceptor& acceptor);

/// Passes every incoming connection to `take`, until the acceptor is closed. If the system lacks descriptors
/// or memory for the next one, retries, and reports that once to `say`. Throws asio::system_error if the
/// acceptor itself has failed.
[[nodiscard]] asio::awaitable<void> accept_all(asio::ip::tcp::acceptor& acceptor,
                                               std::function<void(asio::ip::tcp::socket)> take,
                                               std::function<void(const std::string&)> say);

/// The address that peers dial: `advertise`, with the bound port instead of port 0, or the bound address if
/// it is empty. Throws Error(config) if peers cannot dial that.
[[nodiscard]] Address advertised_address(const std::string& advertise, const Address& bound);

/// Usual limit for `dial`.
inline constexpr std::chrono::seconds dial_time_limit{5};

/// Resolves the host and tries each of its addresses to connect `socket`, which must outlive the call;
/// closing it ends the attempt. Returns the error of the last address, or none. Gives up after `limit`,
/// because the system repeats its first packet at ever longer intervals: a recovered link would go unnoticed
/// for half a minute. An address NAME.mailbox leads through the mailbox, if there is one.
[[nodiscard]] asio::awaitable<asio::error_code> dial(asio::ip::tcp::socket& socket, Address address,
                                                     std::chrono::steady_clock::duration limit,
                                                     std::shared_ptr<Mailbox> mailbox = nullptr);

/// Connects to one of these addresses, tried in order, each for an equal part of `limit` but at least for
/// `min_time_per_address`.
[[nodiscard]] asio::awaitable<asio::error_code> connect_to_any(asio::ip::tcp::socket& socket,
                                                               std::vector<asio::ip::tcp::endpoint> endpoints,
                                                               std::chrono::steady_clock::duration limit);
inline constexpr auto min_time_per_address = std::chrono::seconds(2);

}  // namespace isthmus::outer_sync::transport
