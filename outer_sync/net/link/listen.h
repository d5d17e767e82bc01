#pragma once
// The two ways a connection begins: a listener, with an error that says what to do, and dialling.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync::transport {

/// Throws Error(config) naming the key `what` and the address when it cannot be bound.
[[nodiscard]] asio::ip::tcp::acceptor listen_at(asio::io_context& io, const std::string& address,
                                                const std::string& what);

/// The address a listener is really bound to.
[[nodiscard]] Address bound_address(const asio::ip::tcp::acceptor& acceptor);

/// Gives every connection that comes in to `take`, until the acceptor is closed. What the system lacks for
/// the next one (descriptors, memory) is waited for, and is said once each time that this begins. Throws
/// asio::system_error when the acceptor itself has failed.
[[nodiscard]] asio::awaitable<void> accept_all(asio::ip::tcp::acceptor& acceptor,
                                               std::function<void(asio::ip::tcp::socket)> take,
                                               std::function<void(const std::string&)> say);

/// What peers dial: `advertise`, with the bound port in place of port 0; the bound address where it is empty.
/// Throws Error(config) when nobody could dial that.
[[nodiscard]] Address advertised_address(const std::string& advertise, const Address& bound);

/// What most callers of `dial` give as its limit.
inline constexpr std::chrono::seconds dial_time_limit{5};

/// Resolves the host, tries each of its addresses and connects `socket`, which must live until this returns;
/// to close it while it connects ends it. Returns why there is no connection, as the last address had it.
/// Gives up connecting after `limit`: the system repeats its first packet at ever longer intervals, so that a
/// link that has come back would go unnoticed for half a minute.
[[nodiscard]] asio::awaitable<asio::error_code> dial(asio::ip::tcp::socket& socket, Address address,
                                                     std::chrono::steady_clock::duration limit);

/// The same, once it is resolved: all of these in their order, each for an equal part of the time, but at
/// least `min_time_per_address`.
[[nodiscard]] asio::awaitable<asio::error_code> connect_to_any(asio::ip::tcp::socket& socket,
                                                               std::vector<asio::ip::tcp::endpoint> endpoints,
                                                               std::chrono::steady_clock::duration limit);
inline constexpr auto min_time_per_address = std::chrono::seconds(2);

}  // namespace isthmus::outer_sync::transport
