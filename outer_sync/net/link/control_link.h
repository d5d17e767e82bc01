#pragma once
// A member's connection to its coordinator, which is made again when it breaks. Everything here runs on the
// io thread.

#include <asio/io_context.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/address.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"

namespace isthmus::outer_sync::transport {

/// How long to wait before dialling once more after so many failures: from 100 ms, doubling, to 2 s, of which
/// the seed takes away up to a half, so that members that have lost their coordinator together do not come
/// back together.
[[nodiscard]] Connection::Clock::duration redial_pause(std::uint64_t seed, std::size_t failures);

struct ControlLinkOptions {
  std::vector<Address> coordinators;          ///< at least one; dialled in turn until one answers
  Connection::Clock::duration silence_limit;  ///< `network.detect_timeout`
  /// The clock is asked that often; the silence that is noticed may be longer by as much.
  Connection::Clock::duration check_every;
  std::uint64_t seed = 0;  ///< of the pauses
};

class ControlLink {
 public:
  /// Calls of `on_up` and `on_down` alternate. Each of these may call `send`, `finish` and `stop`.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// A new connection, on which nothing has been said yet: say hello. Whoever has accepted it need not be a
    /// coordinator, nor answer.
    virtual void on_up() = 0;
    /// An Error that it throws ends the connection, as what the coordinator got wrong.
    virtual void on_control(protocol::ControlMessage message) = 0;
    /// The connection has ended; `why` names the address. It is made again unless this link was ended here.
    virtual void on_down(const std::string& why) = 0;
  };

  /// The clock and the handler must outlive the io context's last run.
  ControlLink(asio::io_context& io, ControlLinkOptions options, LinkOptions link, WireCounters& counters,
              AwakeClock& clock, Trace& trace, Handler& handler);

  /// Begins to dial. To be called once.
  void start();
  /// Dropped while there is no connection: what one connection has not sent, the next one does not either.
  void send(const protocol::ControlMessage& message);
  /// Ends this connection, if there is one, and makes another.
  void redial();
  /// Ends the link once everything sent has left, or at once. Nothing is heard any more.
  void finish();
  void stop();

  [[nodiscard]] bool up() const { return connection_ != nullptr; }
  /// Why there is no connection, as of the last attempt; empty before the first has failed.
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
  asio::ip::tcp::socket* connecting_ = nullptr;  ///< of the dial loop
  ConnectionPtr introducing_;                    ///< that has been made, by TLS not yet
  ConnectionPtr connection_;
  AwakeClock::Clock::duration heard_{};  ///< by clock_
  bool answered_ = false;                ///< by this connection, with a message
  bool silent_ = false;                  ///< this connection was closed for that
  std::size_t failures_ = 0;             ///< since a coordinator has answered
  std::string last_failure_;
};

}  // namespace isthmus::outer_sync::transport
