#include "forwarder.h"

#include <array>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <deque>
#include <future>
#include <optional>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/core/address.h"

namespace isthmus::outer_sync {

using asio::use_awaitable;
using asio::ip::tcp;

namespace {
constexpr std::size_t max_kept = 64 * 1024;
}

struct Forwarder::Pair {
  Pair(tcp::socket from, tcp::socket to) : client(std::move(from)), server(std::move(to)) {}
  void close() {
    asio::error_code ignored;
    client.close(ignored);
    server.close(ignored);
  }
  tcp::socket client, server;
  std::size_t left = SIZE_MAX;            ///< bytes until the connection breaks
  std::optional<std::size_t> sound_bits;  ///< bits until one is flipped
  std::shared_ptr<std::string> heard = std::make_shared<std::string>();
};

Forwarder::Forwarder(const std::string& target, std::chrono::milliseconds delay, const std::string& from)
    : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}),
      from_(asio::ip::make_address(from), 0),
      delay_(delay) {
  const auto address = parse_address(target, "target");
  target_ = {asio::ip::make_address(address.host), address.port};
  asio::co_spawn(io_, accept_loop(), asio::detached);
  thread_ = std::thread([this] { io_.run(); });
}

Forwarder::~Forwarder() {
  io_.stop();
  thread_.join();
}

std::string Forwarder::address() const {
  return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
}

void Forwarder::cut() {
  std::promise<void> done;
  asio::post(io_, [&] {
    for (const auto& weak : pairs_) {
      if (const auto pair = weak.lock()) pair->close();
    }
    pairs_.clear();
    done.set_value();
  });
  done.get_future().wait();
}

std::vector<std::string> Forwarder::heard() {
  std::promise<std::vector<std::string>> done;
  asio::post(io_, [&] {
    std::vector<std::string> heard;
    for (const auto& words : heard_) heard.push_back(*words);
    done.set_value(std::move(heard));
  });
  return done.get_future().get();
}

void Forwarder::speak() {
  silent_ = false;
  asio::post(io_, [this] { silent_pairs_.clear(); });
  cut();
}

asio::awaitable<void> Forwarder::accept_loop() {
  for (;;) {
    asio::error_code error;
    auto client = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
    if (error) co_return;
    ++connections_;
    if (!refuse_) asio::co_spawn(io_, carry(std::move(client)), asio::detached);
  }
}

asio::awaitable<void> Forwarder::carry(tcp::socket client) {
  tcp::socket server(io_);
  asio::error_code error;
  server.open(target_.protocol(), error);
  server.bind(from_, error);
  co_await server.async_connect(target_, asio::redirect_error(use_awaitable, error));
  if (error) co_return;
  const auto pair = std::make_shared<Pair>(std::move(client), std::move(server));
  if (const std::size_t most = cut_within_) pair->left = 1 + random_bits(5, 0, connections_) % most;
  if (const std::size_t most = damage_within_)
    pair->sound_bits = random_bits(5, 1, connections_) % (8 * most);
  pairs_.push_back(pair);
  heard_.push_back(pair->heard);
  for (const bool forth : {true, false})
    asio::co_spawn(io_, delay_.count() > 0 ? pump_later(pair, forth) : pump(pair, forth), asio::detached);
}

/// Bytes on their way in one direction of a pair.
struct Forwarder::Line {
  explicit Line(asio::io_context& io) : wake(io) {}
  std::deque<std::pair<std::chrono::steady_clock::time_point, std::vector<char>>> pieces;  ///< empty: the end
  asio::steady_timer wake;
};

/// Delays like a long path: everything that was received arrives in order, each piece after the same time,
/// and so does the end of the connection.
asio::awaitable<void> Forwarder::pump_later(std::shared_ptr<Pair> pair, bool forth) {
  const auto line = std::make_shared<Line>(io_);
  asio::co_spawn(io_, arrive(pair, line, forth), asio::detached);
  auto& from = forth ? pair->client : pair->server;
  std::array<char, 4096> buffer;
  for (asio::error_code error; !error;) {
    const auto n =
        co_await from.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, error));
    line->pieces.emplace_back(std::chrono::steady_clock::now() + delay_,
                              std::vector<char>(buffer.data(), buffer.data() + (error ? 0 : n)));
    line->wake.cancel();
  }
}

asio::awaitable<void> Forwarder::arrive(std::shared_ptr<Pair> pair, std::shared_ptr<Line> line, bool forth) {
  using Clock = std::chrono::steady_clock;
  for (asio::error_code error;;) {
    line->wake.expires_at(line->pieces.empty() ? Clock::time_point::max() : line->pieces.front().first);
    co_await line->wake.async_wait(asio::redirect_error(use_awaitable, error));
    if (line->pieces.empty() || line->pieces.front().first > Clock::now()) continue;
    const auto bytes = std::move(line->pieces.front().second);
    line->pieces.pop_front();
    if (bytes.empty()) break;
    auto& to = forth ? pair->server : pair->client;
    co_await asio::async_write(to, asio::buffer(bytes), asio::redirect_error(use_awaitable, error));
  }
  pair->close();
}

asio::awaitable<void> Forwarder::pump(std::shared_ptr<Pair> pair, bool forth) {
  auto& from = forth ? pair->client : pair->server;
  auto& to = forth ? pair->server : pair->client;
  std::array<char, 4096> buffer;
  asio::error_code error;
  while (!error) {
    auto n = co_await from.async_read_some(asio::buffer(buffer), asio::redirect_error(use_awaitable, error));
    if (error || silent_) continue;
    n = std::min(n, pair->left);
    pair->left -= n;
    if (pair->sound_bits && *pair->sound_bits < 8 * n) {
      auto& byte = buffer[*pair->sound_bits / 8];
      byte = static_cast<char>(byte ^ 1 << *pair->sound_bits % 8);
      pair->sound_bits.reset();
      ++damaged_;
    } else if (pair->sound_bits) {
      *pair->sound_bits -= 8 * n;
    }
    if (forth)
      pair->heard->append(buffer.data(), std::min(n, max_kept - std::min(max_kept, pair->heard->size())));
    co_await asio::async_write(to, asio::buffer(buffer, n), asio::redirect_error(use_awaitable, error));
    if (pair->left == 0) break;
  }
  if (silent_) {
    silent_pairs_.push_back(pair);
  } else {
    pair->close();
  }
}

}  // namespace isthmus::outer_sync
