#include "net/mesh/bridges.h"

#include <array>
#include <asio/buffer.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <utility>

#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using asio::ip::tcp;

namespace {

struct Ends {
  tcp::socket one, other;
};

asio::awaitable<void> forward(std::shared_ptr<Ends> ends, bool there) {
  auto& from = there ? ends->one : ends->other;
  auto& to = there ? ends->other : ends->one;
  std::array<std::byte, 65536> buffer;
  asio::error_code error;
  for (;;) {
    const auto count =
        co_await from.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, error));
    if (error) break;
    co_await asio::async_write(to, asio::buffer(buffer.data(), count),
                               asio::redirect_error(use_awaitable, error));
    if (error) break;
  }
  asio::error_code ignored;
  if (error == asio::error::eof) {
    to.shutdown(tcp::socket::shutdown_send, ignored);
  } else {
    ends->one.close(ignored);
    ends->other.close(ignored);
  }
}

}  // namespace

asio::awaitable<void> join(tcp::socket one, tcp::socket other) {
  const auto ends = std::make_shared<Ends>(Ends{std::move(one), std::move(other)});
  spawn(ends->one.get_executor(), "one way of a bridge", forward(ends, true));
  co_await forward(ends, false);
}

}  // namespace isthmus::outer_sync::transport
