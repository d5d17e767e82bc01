#pragma once
// A replica that this one is connected to: its lanes, what waits for it, and what is known of the way there.
// Everything here runs on the io thread.

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/address.h"
#include "net/link/awake_clock.h"
#include "net/link/connection.h"
#include "net/mesh/outbox.h"
#include "net/rate/arrivals.h"
#include "net/rate/emulated_link.h"
#include "net/rate/pacer.h"
#include "net/rate/rate_follower.h"

namespace isthmus::outer_sync::transport {

struct PeerInfo {
  protocol::ReplicaId id = 0;
  std::string name, address;  ///< HOST:PORT; empty: nobody can dial it
};

/// One of the connections to a peer, or the place of one.
struct Lane {
  explicit Lane(asio::io_context& io) : turn(io) {}
  void stop_dialling();
  ConnectionPtr connection;                     ///< that is up
  bool dialled_here = false;                    ///< it, or the last one that was
  std::uint64_t dialled = 0;                    ///< PeerHello::number of the last one that was dialled here
  std::uint64_t accepted = 0;                   ///< of the last one from there that was up
  ConnectionPtr introducing;                    ///< dialled here, not yet answered
  Connection::Clock::time_point introduced{};   ///< when that began
  asio::ip::tcp::socket* connecting = nullptr;  ///< of the dial loop
  Connection::Clock::time_point down_since{};
  asio::steady_timer turn;       ///< of the dial loop, which waits for its turn
  std::uint64_t rate = 0;        ///< that the system spreads its packets at; 0 any
  std::uint64_t delivered = 0;   ///< bytes, as of the last tick
  std::uint32_t max_unsent = 0;  ///< as the system was told
  std::uint64_t number = 0;      ///< of the connection, the same at both ends
};

/// Its coroutines share it, and end when it is `gone`.
struct Peer {
  PeerInfo info;
  std::optional<Address> address;  ///< none: it has to dial
  std::vector<Lane> lanes;
  AwakeClock::Clock::duration last_up;
  Outbox outbox;
  Arrivals arrivals;
  ArrivalReports reports{};
  EmulatedLink link;
  std::optional<Pacer> pacer;    ///< where there is a rate
  asio::steady_timer link_free;  ///< wakes whoever waits for the link or the pacer
  bool waits_for_link = false;
  RateFollower follower{};
  bool far = false;           ///< on another machine
  bool line_is_full = false;  ///< as of the last tick: something waits for it
  // As of the last tick: bytes since the start, and of its lanes the mean round trip and the shortest ever.
  std::uint64_t delivered = 0;
  RateFollower::Time round_trip{}, shortest{};
  Connection::Clock::time_point renew_at{};
  std::size_t renew_next = 0;
  std::size_t breaches = 0;  ///< of the protocol
  bool gone = false;         ///< no peer any more

  [[nodiscard]] bool up() const;
  /// How long what is sent to it waits on its way at present; with what acknowledgements wait on theirs as
  /// long as that is not known apart.
  [[nodiscard]] RateFollower::Time queue() const;
  /// For its arrivals: how much has gone by that lane so far.
  void see_what_left(std::size_t lane, Connection::Clock::time_point now);
  /// The other end is told what has come from it, where that is worth saying.
  void say_arrived(Connection::Clock::time_point now);
  /// It says what has come there.
  void handle_arrived(const Arrived& said, Connection::Clock::time_point now);
  void close_lanes();
  void retire();
};
using PeerPtr = std::shared_ptr<Peer>;

}  // namespace isthmus::outer_sync::transport
