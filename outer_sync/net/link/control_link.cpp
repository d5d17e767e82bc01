#include "net/link/control_link.h"

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/ssl/error.hpp>
#include <asio/use_awaitable.hpp>
#include <cassert>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using namespace std::chrono_literals;

namespace {
constexpr auto shortest_pause = 100ms;
constexpr auto longest_pause = 2000ms;
constexpr std::uint64_t pause_stream = 0x70617573;  // random stream that nothing else uses with this seed
}  // namespace

Connection::Clock::duration redial_pause(std::uint64_t seed, std::size_t failures) {
  const auto doublings = std::min<std::size_t>(failures, 5);
  const std::chrono::duration<double> whole =
      std::min<std::chrono::milliseconds>(shortest_pause * (1 << doublings), longest_pause);
  const double share = 1 - random_unit(seed, pause_stream, failures) / 2.0;
  return std::chrono::duration_cast<Connection::Clock::duration>(whole * share);
}

ControlLink::ControlLink(asio::io_context& io, ControlLinkOptions options, LinkOptions link,
                         WireCounters& counters, AwakeClock& clock, Trace& trace, Handler& handler)
    : io_(io),
      options_(std::move(options)),
      link_(std::move(link)),
      counters_(counters),
      clock_(clock),
      trace_(trace),
      handler_(handler),
      pause_(io),
      check_(io) {
  assert(!options_.coordinators.empty());
}

void ControlLink::start() {
  spawn(io_.get_executor(), "the connection to the coordinator", dial_loop());
  spawn(io_.get_executor(), "watching the coordinator", watch_loop());
}

void ControlLink::send(const protocol::ControlMessage& message) {
  if (connection_) connection_->send(control_frame(message));
}

void ControlLink::redial() {
  if (connection_) connection_->close();
}

void ControlLink::finish() {
  end();
  if (connection_) connection_->close_when_sent();
}

void ControlLink::stop() {
  end();
  if (connection_) connection_->close();
}

void ControlLink::end() {
  ended_ = true;
  pause_.cancel();
  check_.cancel();
  asio::error_code ignored;
  if (connecting_ != nullptr) connecting_->close(ignored);
  if (introducing_) introducing_->close();
}

asio::awaitable<void> ControlLink::dial_loop() {
  std::size_t turn = 0;
  while (!ended_) {
    const auto& address = options_.coordinators[turn % options_.coordinators.size()];
    asio::ip::tcp::socket socket(io_);
    connecting_ = &socket;
    const auto error = co_await dial(socket, address, dial_time_limit, link_.mailbox);
    connecting_ = nullptr;
    if (ended_) co_return;
    if (error) {
      last_failure_ = address.to_string() + ": " + error.message();
    } else {
      OtherEnd other{.dialled = true, .name = tls::coordinator_name};
      auto connection = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
      co_await serve(std::move(connection), address);
    }
    if (ended_) co_return;
    // A coordinator that has answered may return at the same address; otherwise try the next one.
    if (error || !answered_) ++turn;
    pause_.expires_after(redial_pause(options_.seed, failures_ / options_.coordinators.size()));
    ++failures_;
    asio::error_code woken;
    co_await pause_.async_wait(asio::redirect_error(use_awaitable, woken));
  }
}

asio::awaitable<void> ControlLink::serve(ConnectionPtr connection, const Address& address) {
  answered_ = silent_ = false;
  introducing_ = connection;
  auto why = co_await introduce(connection);
  introducing_ = nullptr;
  const bool is_meant = why.empty() && connection->open();
  if (is_meant) {
    connection_ = connection;
    heard_ = clock_.now();
    handler_.on_up();
    why = co_await listen(connection);
  }
  connection->close();
  connection_ = nullptr;
  if (silent_) why = "silent for longer than network.detect_timeout";
  if (ended_) why = "ended here";
  last_failure_ = address.to_string() + ": " + why;
  if (is_meant) handler_.on_down(last_failure_);
}

/// Returns why the process there is not the coordinator; empty if it is.
asio::awaitable<std::string> ControlLink::introduce(ConnectionPtr connection) {
  try {
    co_await connection->introduced();
  } catch (const Error& error) {
    co_return error.what();
  }
  co_return std::string();
}

/// Returns why the connection has ended.
asio::awaitable<std::string> ControlLink::listen(ConnectionPtr connection) {
  try {
    while (connection->open()) {
      const auto frame = co_await connection->receive(control_limit);
      if (ended_) continue;  // messages are ignored once the link has ended
      if (frame.type != FrameType::control)
        throw Error(ErrorKind::network, "it sent a frame that is not a control frame");
      heard_ = clock_.now();
      auto message = protocol::decode_control(*frame.body);
      answered_ = true;
      failures_ = 0;
      handler_.on_control(std::move(message));
    }
  } catch (const asio::system_error& error) {
    const bool closed =
        error.code() == asio::error::eof || error.code() == asio::ssl::error::stream_truncated;
    co_return closed ? "it closed the connection" : error.code().message();
  } catch (const std::exception& error) {
    co_return error.what();
  }
  co_return "its connection closed";
}

asio::awaitable<void> ControlLink::watch_loop() {
  while (!ended_) {
    check_.expires_after(options_.check_every);
    asio::error_code woken;
    co_await check_.async_wait(asio::redirect_error(use_awaitable, woken));
    const auto now = clock_.now();
    if (!connection_ || now - heard_ <= options_.silence_limit + 2 * link_.hold) continue;
    silent_ = true;
    connection_->close();
  }
}

}  // namespace isthmus::outer_sync::transport
