#include "net/coordinator/preflight.h"

#include <asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "net/link/listen.h"
#include "net/mailbox/mail_names.h"
#include "tls/credentials.h"

namespace isthmus::outer_sync::transport {

namespace {

constexpr std::size_t piece = std::size_t{32} << 10;
constexpr auto settling = std::chrono::milliseconds(500);
constexpr auto min_measured = std::chrono::milliseconds(200);

}  // namespace

std::string run_preflight(asio::io_context& io, asio::awaitable<std::string> work) {
  std::string result;
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(work), [&](const std::exception_ptr& failed, std::string text) {
    failure = failed;
    result = std::move(text);
    io.stop();
  });
  io.run();
  if (failure) std::rethrow_exception(failure);
  return result;
}

std::chrono::seconds pair_limit(const Address& dialled) {
  return mailbox_name(dialled.host) ? mailbox_pair_limit : direct_pair_limit;
}

Frame preflight_frame(const PreflightMessage& message) {
  return {FrameType::preflight, to_bytes(message), nullptr};
}

asio::awaitable<PreflightMessage> handle_preflight(ConnectionPtr connection, std::size_t limit) {
  const auto frame = co_await connection->receive(limit);
  if (frame.type != FrameType::preflight)
    throw Error(ErrorKind::network,
                "it is not an `isthmus doctor` process; is the run itself using this address?");
  co_return from_bytes<PreflightMessage>(*frame.body);
}

asio::awaitable<void> send_probe(ConnectionPtr connection) {
  const auto frame = preflight_frame({.kind = PreflightMessage::Kind::data, .text = std::string(piece, 'x')});
  const auto until = Connection::Clock::now() + probe_time;
  for (std::uint64_t sent = 0; sent < max_probe_bytes && Connection::Clock::now() < until; sent += piece) {
    connection->send(frame);
    co_await connection->drained();
    if (!connection->open()) co_return;
  }
  connection->send(preflight_frame({.kind = PreflightMessage::Kind::data_end}));
}

void ProbeMeter::count(std::size_t bytes) {
  last_ = Clock::now();
  if (bytes_ == 0) begin_ = last_;
  bytes_ += bytes;
  if (settled_ == Clock::time_point() && last_ - begin_ > settling) {
    settled_ = last_;
    bytes_settled_ = bytes_;
  }
}

double ProbeMeter::bytes_per_second() const {
  const bool long_enough = settled_ != Clock::time_point() && last_ - settled_ > min_measured;
  const auto from = long_enough ? settled_ : begin_;
  const auto bytes = long_enough ? bytes_ - bytes_settled_ : bytes_;
  const double seconds = std::chrono::duration<double>(last_ - from).count();
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

LinkOptions preflight_link(const NetworkConfig& network) {
  LinkOptions link;
  link.congestion = network.congestion;
  link.credentials = credentials_of(network);
  return link;
}

}  // namespace isthmus::outer_sync::transport

namespace isthmus::outer_sync {

void check_listen_address(const std::string& address, const std::string& what) {
  asio::io_context io;
  (void)transport::listen_at(io, address, what);
}

std::optional<std::pair<std::string, std::string>> missing_congestion(const std::string& algorithm) {
  const auto missing = transport::missing_congestion_control(algorithm);
  if (!missing) return std::nullopt;
  return std::pair(missing->problem, missing->remedy);
}

}  // namespace isthmus::outer_sync
