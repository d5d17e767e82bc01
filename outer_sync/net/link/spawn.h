#pragma once
// How every coroutine of net/ is started, so that none of their exceptions disappears.

#include <asio/any_io_executor.hpp>
#include <asio/awaitable.hpp>
#include <string>

namespace isthmus::outer_sync::transport {

/// Starts a coroutine. A connection's catches what ends it, says why and closes the connection. Whatever
/// leaves the coroutine ends the node: the context's `run` throws it, as an Error that says that `what`
/// failed.
void spawn(const asio::any_io_executor& executor, std::string what, asio::awaitable<void> work);

}  // namespace isthmus::outer_sync::transport
