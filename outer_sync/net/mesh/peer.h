#pragma once
// A replica that this one is connected to: its lanes, its outbox, and what is known about the path. All
// functions run on the io thread.

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
  std::string name, address;  ///< HOST:PORT; empty: it has no open port
};

/// One connection to a peer, or the vacant place of one.
struct Lane {
  explicit Lane(asio::io_context& io) : turn(io) {}
  void stop_dialling();
  ConnectionPtr connection;    ///< null: the lane is down
  bool dialled_here = false;   ///< this end dialled the current or last connection
  std::uint64_t dialled = 0;   ///< PeerHello::number of the last connection dialled by this end
  std::uint64_t accepted = 0;  ///< PeerHello::number of the last connection dialled by the peer
  ConnectionPtr introducing;   ///< dialled by this end, hello not answered yet
  Connection::Clock::time_point introduced{};   ///< when `introducing` was dialled
  asio::ip::tcp::socket* connecting = nullptr;  ///< socket that the dial loop is connecting
  Connection::Clock::time_point down_since{};
  asio::steady_timer turn;       ///< the dial loop waits here for its turn
  std::uint64_t rate = 0;        ///< pacing rate given to the system; 0: any
  std::uint64_t delivered = 0;   ///< bytes acknowledged at the last tick
  std::uint32_t max_unsent = 0;  ///< limit of unsent bytes given to the system
  std::uint64_t number = 0;      ///< number of the connection, the same at both ends
};

/// A peer's path at the last tick.
struct LastTick {
  bool line_is_full = false;                    ///< data waited for the path
  std::uint64_t delivered = 0;                  ///< bytes acknowledged since the start
  RateFollower::Time round_trip{}, shortest{};  ///< mean of the lanes, and the shortest ever
};

/// Shared by its coroutines, which end when it is `gone`.
struct Peer {
  PeerInfo info;
  std::optional<Address> address;  ///< nullopt: the peer has to dial
  std::vector<Lane> lanes;
  AwakeClock::Clock::duration last_up;
  Outbox outbox;
  bool held = false;  ///< only exchanges are queued, and wait for rounds to other peers
  Arrivals arrivals;
  ArrivalReports reports{};
  EmulatedLink link;
  std::optional<Pacer> pacer;    ///< nullopt: no rate limit
  asio::steady_timer link_free;  ///< wakes the sender when link and pacer are free
  bool waits_for_link = false;
  RateFollower follower{};
  bool far = false;  ///< on another machine
  LastTick last_tick{};
  Connection::Clock::time_point renew_at{};
  std::size_t renew_next = 0;
  AwakeClock::Clock::duration relay_tried{};  ///< since when its relay may open a path
  AwakeClock::Clock::duration hailed{};       ///< the last time, through its relay
  std::size_t breaches = 0;                   ///< breaches of the protocol
  bool gone = false;                          ///< no longer a peer

  /// Whether queued frames wait for the path, and for nothing else.
  [[nodiscard]] bool path_is_full() const { return !outbox.empty() && !held; }
  [[nodiscard]] bool up() const;
  /// All its connected lanes lead through the mailbox, and there is one.
  [[nodiscard]] bool by_mailbox() const;
  /// Current queueing delay of data sent to this peer; includes that of acknowledgements while the two cannot
  /// be separated.
  [[nodiscard]] RateFollower::Time queue() const;
  /// Records in `arrivals` how many bytes have left on that lane.
  void see_what_left(std::size_t lane, Connection::Clock::time_point now);
  /// Reports to the peer what has arrived from it, if that is enough to report.
  void say_arrived(Connection::Clock::time_point now);
  /// Handles the peer's report of what has arrived there.
  void handle_arrived(const Arrived& said, Connection::Clock::time_point now);
  void close_lanes();
  void retire();
};
using PeerPtr = std::shared_ptr<Peer>;

}  // namespace isthmus::outer_sync::transport
