#include "net/mesh/bridges.h"

#include <array>
#include <asio/buffer.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <utility>

#include "net/link/connection.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using asio::ip::tcp;

namespace {

struct Ends {
  tcp::socket seeker, member;
  void close() {
    asio::error_code ignored;
    seeker.close(ignored);
    member.close(ignored);
  }
};

/// Forwards one way until `from` has ended or one of the two is lost.
asio::awaitable<void> forward(std::shared_ptr<Ends> ends, bool to_member, WireCounters& counters) {
  auto& from = to_member ? ends->seeker : ends->member;
  auto& to = to_member ? ends->member : ends->seeker;
  std::array<std::byte, 65536> buffer;
  asio::error_code error;
  for (;;) {
    const auto count =
        co_await from.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, error));
    if (error) break;
    co_await asio::async_write(to, asio::buffer(buffer.data(), count),
                               asio::redirect_error(use_awaitable, error));
    if (error) break;
    counters.total += count;
  }
  asio::error_code ignored;
  if (error == asio::error::eof && to_member) {
    to.shutdown(tcp::socket::shutdown_send, ignored);
  } else {
    ends->close();  // also ends the other way
  }
}

}  // namespace

asio::awaitable<void> join(tcp::socket seeker, tcp::socket member, WireCounters& counters) {
  const auto ends = std::make_shared<Ends>(Ends{std::move(seeker), std::move(member)});
  spawn(ends->seeker.get_executor(), "one way of a bridge", forward(ends, true, counters));
  co_await forward(ends, false, counters);
}

}  // namespace isthmus::outer_sync::transport
