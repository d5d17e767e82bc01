#pragma once
// Starts all coroutines of net/, so that no exception of theirs is lost.

#include <asio/any_io_executor.hpp>
#include <asio/awaitable.hpp>
#include <string>

namespace isthmus::outer_sync::transport {

/// Starts a coroutine. A connection's coroutine catches the error that ends it, reports it and closes the
/// connection. An exception that leaves a coroutine ends the node: the context's `run` throws it as an Error
/// which says that `what` failed.
void spawn(const asio::any_io_executor& executor, std::string what, asio::awaitable<void> work);

}  // namespace isthmus::outer_sync::transport
