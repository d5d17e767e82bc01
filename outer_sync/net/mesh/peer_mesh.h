#pragma once
// Bulk connections between replicas: `lanes` to every peer, fed from one outbox. Peers come and go with the
// views; connections belong to replicas, not to views. One end of each pair dials at once, and again when a
// lane breaks; where that does not help, or it cannot, the other end dials too. Connections carry chunks both
// ways. To a peer that cannot be connected to, frames go by way of another one, where the coordinator has
// named it. Everything here runs on the io thread.

#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "net/link/line_limiter.h"
#include "net/mesh/line_rates.h"
#include "net/mesh/peer.h"
#include "net/mesh/relay_ways.h"

namespace isthmus::outer_sync::transport {

class PeerMesh {
 public:
  /// Any of these may call `set_peers`. Nothing is said of a replica that is no peer (any more).
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Its body is packed as the header says; who may be among the contributors is left to the receiver.
    /// Returns why the peer breaks the protocol; its connection is then dropped.
    [[nodiscard]] virtual std::optional<std::string> on_chunk(protocol::ReplicaId from,
                                                              Connection::Received chunk) = 0;
    virtual void on_ack(protocol::ReplicaId from, protocol::ViewNumber view,
                        const protocol::ChunkKey& key) = 0;
    /// The view has begun at the peer: what was sent to it for that view before, it dropped.
    virtual void on_begun(protocol::ReplicaId from, protocol::ViewNumber view) = 0;
    /// The first lane to the peer, or the way by its relay, is there (again): what was not acknowledged must
    /// be repeated.
    virtual void on_peer_up(protocol::ReplicaId peer) = 0;
    /// The last lane to the peer is gone, or that way. It is dialled again while it stays a peer.
    virtual void on_peer_down(protocol::ReplicaId peer) = 0;
    /// When a chunk that is carried for others is due, in the order of `send`.
    [[nodiscard]] virtual std::uint64_t order_of(const protocol::ChunkKey& key) const = 0;
    /// The peer broke the protocol again and again: dialling once more will not mend it.
    virtual void on_broken_peer(protocol::ReplicaId peer, const std::string& why) = 0;
    /// Somebody who has shown the token wants state: a joiner or an observer, whom no view need name. Its
    /// connection is closed when this ends; an Error that it throws is said. There are never more than
    /// `max_fetchers` at a time.
    [[nodiscard]] virtual asio::awaitable<void> on_fetcher(protocol::ReplicaId fetcher,
                                                           ConnectionPtr connection) = 0;
    virtual void on_message(const std::string& text) = 0;
  };
  static constexpr std::size_t max_fetchers = 16;

  /// An acceptor that is not open: this member opens no port.
  PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes, WireCounters& counters,
           const LinkOptions& link, AwakeClock& clock, Trace& trace, Handler& handler);

  /// Once per incarnation, without peers: who we are, and the token that members show each other. No frame of
  /// a peer is longer than `frame_limit`; what chunks they send is put into memory of `chunks`.
  void begin(protocol::ReplicaId self, std::string self_name, const Digest& token, std::size_t frame_limit,
             const BufferPool& chunks);
  /// The peers from now on, after `begin`; we are none of them. New ones are dialled; the lanes of those that
  /// are gone are closed at once; those that stay keep theirs. Throws Error(config) naming a peer whose
  /// address nobody can dial and Error(network) when one is named twice or is this replica; the peers are
  /// then as they were.
  void set_peers(const std::vector<PeerInfo>& peers);

  /// All relays that there are from now on. Those of replicas that are no peers wait until they are.
  void set_relays(protocol::Relays relays);
  [[nodiscard]] std::uint64_t relays_number() const { return told_.number; }

  /// Bytes that may wait for one peer: for one who knows the layout later than this is made.
  void queue_at_most(std::size_t bytes) { link_.max_queued = bytes; }
  /// Whether somewhere more waits to be written than the line takes.
  [[nodiscard]] bool backed_up() const;
  /// Bytes per second that all peers together are sent at most, in equal shares of those who have something
  /// to get; 0: the line's own rate is followed.
  void send_at_most(std::uint64_t bytes_per_second) { rates_.send_at_most(bytes_per_second); }
  /// To be called every few ten milliseconds: shares the rate out anew and cuts lanes that have stalled.
  void tick();

  /// Whether there is a lane to the peer, or an open way by its relay.
  [[nodiscard]] bool up(protocol::ReplicaId peer) const;
  /// These are dropped while the peer is not up (`on_peer_up` comes when one is) and where `peer` is none. A
  /// chunk goes by whichever lane is free, and by another when that one is lost before it is acknowledged;
  /// those of lower `order` go first (Outbox). With `packed`, these bytes go in place of the message's.
  void send(protocol::ReplicaId peer, std::uint64_t order, const protocol::ChunkMessage& message,
            const protocol::SharedBytes& packed = nullptr);
  void acknowledge(protocol::ReplicaId peer, protocol::ViewNumber view, const protocol::ChunkKey& key);
  void say_begun(protocol::ReplicaId peer, protocol::ViewNumber view);
  /// Here: what was to be sent in older views is not sent any more.
  void view_begun(protocol::ViewNumber view);
  /// To the peers that are connected, as of the last tick.
  [[nodiscard]] std::vector<protocol::PathReport> paths() const;
  /// The peers that have not been up for longer than `limit`.
  [[nodiscard]] std::vector<protocol::ReplicaId> lost(AwakeClock::Clock::duration limit);
  /// The peers to whom there is no lane and for whom there is a relay, whether its way is open or not.
  [[nodiscard]] std::vector<protocol::ReplicaId> relayed() const;

 private:
  void accept(asio::ip::tcp::socket socket);
  [[nodiscard]] asio::awaitable<void> welcome(ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<PeerPtr> peer_that_says(PeerHello hello, ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> teach(protocol::ReplicaId fetcher, ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> dial_loop(PeerPtr peer, std::size_t lane);
  [[nodiscard]] asio::awaitable<void> wait_for_turn(PeerPtr peer, std::size_t lane);
  [[nodiscard]] asio::awaitable<void> introduce(PeerPtr peer, std::size_t lane, ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> serve(PeerPtr peer, std::size_t lane, ConnectionPtr connection);
  [[nodiscard]] PeerPtr make_peer(const PeerInfo& info, std::optional<Address> address);
  [[nodiscard]] bool comes_first(const Peer& peer) const;
  [[nodiscard]] bool may_take_its_place(const Peer& peer, const Lane& lane, const PeerHello& hello) const;
  [[nodiscard]] PeerHello hello_to(protocol::ReplicaId peer, std::size_t lane) const;
  void check_hello(const PeerHello& hello) const;
  void take(Peer& peer, Connection::Received frame);
  void carry(Peer& peer, Connection::Received frame);
  void keep_for(const PeerPtr& target, Connection::Received frame);
  void forget_what_is_not_carried_any_more(const RelayWays::Carried& before);
  void handle_relayed(Peer& relay, Connection::Received frame);
  void handle_hail(Peer& relay, protocol::ReplicaId from, const Hail& hail);
  void hail_all();
  void way_lost(protocol::ReplicaId peer);
  void ways_lost(protocol::ReplicaId relay);
  void say_lost_to_origins(protocol::ReplicaId peer);
  void send_at_once(Peer& peer, Frame frame);
  [[nodiscard]] std::size_t max_queued(const Peer& peer) const;
  void dispatch(protocol::ReplicaId peer, std::uint64_t order, Frame frame, Outbox::Receipt receipt);
  void put(const PeerPtr& peer, std::uint64_t order, Frame frame, const Outbox::Receipt& receipt);
  void feed(const PeerPtr& peer);
  void leave(Peer& peer, std::size_t lane, Frame frame, Connection::Clock::time_point now);
  [[nodiscard]] bool must_wait(const PeerPtr& peer, Connection::Clock::time_point now);
  [[nodiscard]] std::uint64_t number_of(const Peer& peer, const Lane& lane) const;
  void lane_up(const PeerPtr& peer, std::size_t lane, const ConnectionPtr& connection);
  void lane_down(const PeerPtr& peer, std::size_t lane);
  void cut_stalled(Peer& peer);
  void take_over_overdue(const PeerPtr& peer);
  void acknowledged(Peer& peer, const Outbox::Receipt& receipt);
  void count_breach(Peer& peer, const Connection& connection, const std::string& why);

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  std::size_t lanes_;
  WireCounters& counters_;
  LinkOptions link_;
  AwakeClock& clock_;
  Trace& trace_;
  Handler& handler_;
  LineRates rates_;
  LineLimiter stranger_line_;
  std::shared_ptr<UnknownConnections> unknown_ = std::make_shared<UnknownConnections>();

  bool begun_ = false;
  protocol::ReplicaId self_ = 0;
  std::string self_name_;
  Digest token_;
  std::size_t frame_limit_ = 0;
  std::optional<BufferPool> chunks_;
  std::map<protocol::ReplicaId, PeerPtr> peers_;
  std::uint64_t dialled_ = 0;      ///< connections
  protocol::ViewNumber view_ = 0;  ///< that has begun here
  protocol::Relays told_;
  RelayWays ways_;
  /// Whose frame, that has come by a relay, is listened to at the moment.
  std::optional<protocol::ReplicaId> hearing_relayed_;
  /// The lane that is listened to at the moment: an acknowledgement goes back where its chunk came, so that
  /// whoever has lost the one knows that the other may be lost.
  ConnectionPtr hearing_;
  /// Names of those that are served, by their certificates; empty ones without TLS. Shared with them, since
  /// their coroutines may be gone last.
  std::shared_ptr<std::multiset<std::string>> fetchers_ = std::make_shared<std::multiset<std::string>>();
  asio::steady_timer waiting_;  ///< of those who said hello before they were peers; cancelled to wake them
};

}  // namespace isthmus::outer_sync::transport
