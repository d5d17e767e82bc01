#pragma once
// Bulk connections between replicas: `lanes` to every peer, fed from one outbox. Connections belong to
// replicas and outlive views. One end of each pair dials first and redials broken lanes; if it fails or
// cannot, the other end dials too. Frames to an unreachable peer go through the relay that the coordinator
// has named. All functions run on the io thread.

#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/link/line_limiter.h"
#include "net/mesh/bridges.h"
#include "net/mesh/line_rates.h"
#include "net/mesh/peer.h"
#include "net/mesh/relay_ways.h"

namespace isthmus::outer_sync::transport {

class PeerMesh {
 public:
  /// Each callback may call `set_peers`. None concerns a replica that is not (or no longer) a peer.
  class Handler {
   public:
    virtual ~Handler() = default;
    /// The body is packed as the header says; the receiver checks the contributors. Returns the peer's breach
    /// of the protocol, if any; its connection is then dropped.
    [[nodiscard]] virtual std::optional<std::string> on_chunk(protocol::ReplicaId from,
                                                              Connection::Received chunk) = 0;
    virtual void on_ack(protocol::ReplicaId from, protocol::ViewNumber view,
                        const protocol::ChunkKey& key) = 0;
    /// The view has begun at the peer, which dropped frames of that view that it got before.
    virtual void on_begun(protocol::ReplicaId from, protocol::ViewNumber view) = 0;
    /// The first lane to the peer, or its relayed path, is up (again): repeat what is not acknowledged.
    virtual void on_peer_up(protocol::ReplicaId peer) = 0;
    /// The last lane to the peer, or its relayed path, is lost. It is dialled again while it stays a peer.
    virtual void on_peer_down(protocol::ReplicaId peer) = 0;
    /// When a relayed chunk is due, in the order of `send`.
    [[nodiscard]] virtual std::uint64_t order_of(const protocol::ChunkKey& key) const = 0;
    /// The peer broke the protocol repeatedly: dialling again will not help.
    virtual void on_broken_peer(protocol::ReplicaId peer, const std::string& why) = 0;
    /// A fetcher (a joining member or an observer, which need not be in a view) has shown the token and wants
    /// the state. Its connection is closed when this ends; an Error from it is logged. At most `max_fetchers`
    /// run at a time.
    [[nodiscard]] virtual asio::awaitable<void> on_fetcher(protocol::ReplicaId fetcher,
                                                           ConnectionPtr connection) = 0;
    /// A bridge here begins or ends to carry bytes.
    virtual void on_bridge(bool begins) = 0;
    virtual void on_message(const std::string& text) = 0;
  };
  static constexpr std::size_t max_fetchers = 16;

  /// The acceptor is closed if this member has no open port.
  PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes, WireCounters& counters,
           const LinkOptions& link, AwakeClock& clock, Trace& trace, Handler& handler);

  /// Call once per incarnation, before there are peers: sets this member's identity and the token that
  /// members show each other. Peers' frames are limited to `frame_limit`; their chunks are read into memory
  /// of `chunks`.
  void begin(protocol::ReplicaId self, std::string self_name, const Digest& token, std::size_t frame_limit,
             const BufferPool& chunks);
  /// Sets the peers, without this member; call after `begin`. New peers are dialled, lanes of removed ones
  /// are closed at once, others keep theirs. Throws Error(config) with the peer if an address is invalid, and
  /// Error(network) if a peer is listed twice or is this replica; the peers are then unchanged.
  void set_peers(const std::vector<PeerInfo>& peers);

  /// Sets all relays. Those of replicas that are not peers take effect once they are.
  void set_relays(protocol::Relays relays);
  [[nodiscard]] std::uint64_t relays_number() const { return told_.number; }

  /// Sets the maximum bytes queued for one peer, for a member that learns the layout later.
  void queue_at_most(std::size_t bytes) { link_.max_queued = bytes; }
  /// Whether frames for any peer are queued because its path is full.
  [[nodiscard]] bool backed_up() const;
  /// Limits the bytes per second to all peers together, shared equally by the peers with queued frames; 0:
  /// follow the measured rates.
  void send_at_most(std::uint64_t bytes_per_second) { rates_.send_at_most(bytes_per_second); }
  /// While closed, sends no frames but acknowledgements and other short ones; the rest stays queued.
  void close(bool closed);
  /// Call every few tens of milliseconds: shares out the rate anew and cuts stalled lanes.
  void tick();

  /// Whether there is a lane to the peer or an open relayed path.
  [[nodiscard]] bool up(protocol::ReplicaId peer) const;
  /// Sends a frame; dropped if `peer` is not a peer or is not up (`on_peer_up` follows). A chunk goes by the
  /// first free lane, and by another one if that is lost before the acknowledgement; lower `order` goes first
  /// (Outbox). `packed`, if given, is sent instead of the message's bytes.
  void send(protocol::ReplicaId peer, std::uint64_t order, const protocol::ChunkMessage& message,
            const protocol::SharedBytes& packed = nullptr);
  /// Outbox::drop_exchanges for all peers.
  void drop_exchanges(protocol::MemberIndex sender, FragmentLayout::ChunkSpan chunks, std::uint64_t before);
  void acknowledge(protocol::ReplicaId peer, protocol::ViewNumber view, const protocol::ChunkKey& key);
  void say_begun(protocol::ReplicaId peer, protocol::ViewNumber view);
  /// The view has begun here: drops queued frames of older views.
  void view_begun(protocol::ViewNumber view);
  /// Paths to the connected peers, as of the last tick. Those through the mailbox are left out: their sockets
  /// end on this machine.
  [[nodiscard]] std::vector<protocol::PathReport> paths() const;
  /// The peers that have been down for longer than `limit`.
  [[nodiscard]] std::vector<protocol::ReplicaId> unreachable(AwakeClock::Clock::duration limit);
  /// The peers without a lane that have a relay, whether the relayed path is open or not.
  [[nodiscard]] std::vector<protocol::ReplicaId> relayed() const;

  /// Takes a connection that a peer has dialled, by TCP or through the mailbox.
  void accept(asio::ip::tcp::socket socket, bool by_mailbox = false);

 private:
  [[nodiscard]] asio::awaitable<void> welcome(ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<PeerPtr> peer_that_says(PeerHello hello, ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> teach(protocol::ReplicaId fetcher, ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> build_bridge(PeerHello hello, ConnectionPtr seeker);
  [[nodiscard]] asio::awaitable<void> await_end(Bridge& bridge, std::uint64_t number, ConnectionPtr seeker);
  [[nodiscard]] asio::awaitable<void> join_bridge(PeerHello hello, ConnectionPtr end);
  [[nodiscard]] asio::awaitable<void> dial_bridge(PeerPtr peer, std::uint64_t number);
  [[nodiscard]] asio::awaitable<void> dial_loop(PeerPtr peer, std::size_t lane);
  [[nodiscard]] asio::awaitable<void> wait_for_turn(PeerPtr peer, std::size_t lane);
  [[nodiscard]] bool only_by_mailbox(const Peer& peer, const Peer& relay) const;
  [[nodiscard]] bool a_relay_may_help(const Peer& peer) const;
  void prefer_relays();
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
  void relayed_path_lost(protocol::ReplicaId peer);
  void paths_lost_with(protocol::ReplicaId relay);
  void say_lost_to_origins(protocol::ReplicaId peer);
  void send_at_once(Peer& peer, Frame frame);
  [[nodiscard]] std::size_t max_queued(const Peer& peer) const;
  void dispatch(protocol::ReplicaId peer, std::uint64_t order, Frame frame, Outbox::Receipt receipt);
  void put(const PeerPtr& peer, std::uint64_t order, Frame frame, const Outbox::Receipt& receipt);
  void feed(const PeerPtr& peer);
  void feed_held();
  void send_queued(const PeerPtr& peer);
  void send_on_lane(Peer& peer, std::size_t lane, Frame frame, Connection::Clock::time_point now);
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

  /// As given to `begin`.
  struct Self {
    bool begun = false;
    protocol::ReplicaId id = 0;
    std::string name;
    Digest token;
    std::size_t frame_limit = 0;
    std::optional<BufferPool> chunks;
  } self_;
  std::map<protocol::ReplicaId, PeerPtr> peers_;
  bool closed_ = false;            ///< by the calendar
  std::uint64_t dialled_ = 0;      ///< number of connections dialled
  protocol::ViewNumber view_ = 0;  ///< view that has begun here
  protocol::Relays told_;
  RelayWays ways_;
  /// The frame being handled: the lane that delivered it, and its origin if it was relayed. An
  /// acknowledgement goes back on the lane of its chunk, so that a member that has lost one knows that the
  /// other may be lost.
  struct Handling {
    ConnectionPtr lane;
    std::optional<protocol::ReplicaId> origin;
  } handling_;
  std::shared_ptr<FetcherNames> fetchers_ = std::make_shared<FetcherNames>();
  asio::steady_timer waiting_;  ///< early hellos wait here; cancelled to wake them
  std::shared_ptr<Bridges> bridges_ = std::make_shared<Bridges>();
};

}  // namespace isthmus::outer_sync::transport
