#include "isthmus/outer_sync/net/coordinator/control_client.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <string>

#include "config/duration.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "net/link/connection.h"
#include "net/link/listen.h"
#include "net/link/run_secret.h"
#include "tls/credentials.h"

namespace isthmus::outer_sync {

using namespace transport;

namespace {

protocol::Answer answer_in(const Connection::Received& frame) {
  if (frame.type != FrameType::control)
    throw Error(ErrorKind::network, "it sent a frame that is not a control frame");
  auto message = protocol::decode_control(*frame.body);
  if (const auto* answer = std::get_if<protocol::Answer>(&message)) return *answer;
  if (const auto* refused = std::get_if<protocol::Refused>(&message)) return {refused->reason, {}};
  throw Error(ErrorKind::network, "it sent a message other than an answer");
}

/// Throws an Error that describes the failure at this address.
asio::awaitable<protocol::Answer> ask_at(Address address, const protocol::Command& command, LinkOptions link,
                                         std::chrono::seconds limit) {
  const auto io = co_await asio::this_coro::executor;
  WireCounters counters;
  Trace trace;
  asio::ip::tcp::socket socket(io);
  if (const auto error = co_await dial(socket, address, dial_time_limit))
    throw Error(ErrorKind::network, error.message());
  OtherEnd other{.dialled = true, .name = tls::coordinator_name};
  const auto connection = start_connection(std::move(socket), counters, link, trace, std::move(other));
  bool late = false;
  try {
    const Watchdog watchdog(connection, limit, [&late] { late = true; });
    co_await connection->introduced();
    connection->send(control_frame(command));
    const auto answer = answer_in(co_await connection->receive(control_limit));
    connection->close();
    co_return answer;
  } catch (const asio::system_error& error) {
    connection->close();
    if (late) throw Error(ErrorKind::network, "no answer within " + std::to_string(limit.count()) + " s");
    throw Error(ErrorKind::network, "it closed the connection: " + error.code().message());
  } catch (const Error&) {
    connection->close();
    throw;
  }
}

}  // namespace

protocol::Answer ask(const NetworkConfig& network, const protocol::Command& command,
                     std::chrono::seconds limit) {
  const LinkOptions link{.give_up = to_duration(network.detect_timeout),
                         .credentials = credentials_of(network),
                         .secret = secret_of(network)};
  std::string why;
  for (const auto& address : parse_addresses(network.coordinator, "network.coordinator")) {
    asio::io_context io;
    std::optional<protocol::Answer> answer;
    std::exception_ptr failure;
    asio::co_spawn(io, ask_at(address, command, link, limit),
                   [&](const std::exception_ptr& error, protocol::Answer got) {
                     failure = error;
                     answer = std::move(got);
                     io.stop();
                   });
    io.run();
    if (!failure) return *answer;
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      why += (why.empty() ? "" : "; ") + address.to_string() + ": " + error.what();
    }
  }
  throw Error(ErrorKind::network, "no answer from the coordinator at " + why);
}

}  // namespace isthmus::outer_sync
