#pragma once
// A member's connection to its coordinator, redialled whenever it breaks. All functions run on the io thread.

#include <asio/io_context.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/address.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {

/// Pause before redialling after this many failures: 100 ms, doubling up to 2 s, less a random part (by
/// `seed`) of up to a half, so that members that lost their coordinator together do not return together.
[[nodiscard]] Connection::Clock::duration redial_pause(std::uint64_t seed, std::size_t failures);

struct ControlLinkOptions {
  std::vector<Address> coordinators;          ///< at least one; dialled in turn until one answers
  Connection::Clock::duration silence_limit;  ///< `network.detect_timeout`; an emulated round trip is added
  /// How often silence is checked; detection may be late by as much.
  Connection::Clock::duration check_every;
  std::uint64_t seed = 0;  ///< seed of the pauses
};

class ControlLink {
 public:
  /// Calls of `on_up` and `on_down` alternate. Each callback may call `send`, `finish` and `stop`.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// A new connection is up: send the hello. The process that accepted it need not be a coordinator, nor
    /// answer.
    virtual void on_up() = 0;
    /// An Error from it ends the connection, as a fault of the coordinator.
    virtual void on_control(protocol::ControlMessage message) = 0;
    /// The connection has ended; `why` names the address. It is dialled again unless this end has ended the
    /// link.
    virtual void on_down(const std::string& why) = 0;
  };

  /// The clock and the handler must outlive the io context's last run.
  ControlLink(asio::io_context& io, ControlLinkOptions options, LinkOptions link, WireCounters& counters,
              AwakeClock& clock, Trace& trace, Handler& handler);

  /// Starts dialling. Call once.
  void start();
  /// Drops the message while there is no connection. Messages that one connection has not sent are not sent
  /// on the next one either.
  void send(const protocol::ControlMessage& message);
  /// Ends the current connection, if any, and dials again.
  void redial();
  /// `finish` ends the link once all messages have been sent, `stop` at once. No more messages are received.
  void finish();
  void stop();

  [[nodiscard]] bool up() const { return connection_ != nullptr; }
  /// Why the last attempt failed; empty before the first failure.
  [[nodiscard]] const std::string& last_failure() const { return last_failure_; }

 private:
  [[nodiscard]] asio::awaitable<void> dial_loop();
  [[nodiscard]] asio::awaitable<void> watch_loop();
  [[nodiscard]] asio::awaitable<void> serve(ConnectionPtr connection, const Address& address);
  [[nodiscard]] asio::awaitable<std::string> introduce(ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<std::string> listen(ConnectionPtr connection);
  void end();

  asio::io_context& io_;
  ControlLinkOptions options_;
  LinkOptions link_;
  WireCounters& counters_;
  AwakeClock& clock_;
  Trace& trace_;
  Handler& handler_;
  asio::steady_timer pause_, check_;

  bool ended_ = false;
  asio::ip::tcp::socket* connecting_ = nullptr;  ///< socket being connected by the dial loop
  ConnectionPtr introducing_;                    ///< connected, but not authenticated yet
  ConnectionPtr connection_;
  AwakeClock::Clock::duration heard_{};  ///< by clock_: when the last message arrived
  bool answered_ = false;                ///< a message has arrived on this connection
  bool silent_ = false;                  ///< this connection was closed because of silence
  std::size_t failures_ = 0;             ///< since the last message from a coordinator
  std::string last_failure_;
};

}  // namespace isthmus::outer_sync::transport
