#include "net/mesh/peer_mesh.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "isthmus/base/error.h"
#include "net/link/listen.h"
#include "net/link/spawn.h"

namespace isthmus::outer_sync::transport {

using protocol::ReplicaId;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t max_breaches = 5;

std::string lost_connection(const Peer& peer, const Connection& connection, const std::string& why) {
  return "dropped a connection of " + peer.info.name + " (" + connection.remote() + "): " + why;
}

}  // namespace

PeerMesh::PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes,
                   WireCounters& counters, const LinkOptions& link, AwakeClock& clock, Trace& trace,
                   Handler& handler)
    : io_(io),
      acceptor_(std::move(acceptor)),
      lanes_(lanes),
      counters_(counters),
      link_(link),
      clock_(clock),
      trace_(trace),
      handler_(handler),
      rates_(link),
      stranger_line_([&handler](const std::string& line) { handler.on_message(line); }),
      waiting_(io, Connection::Clock::time_point::max()) {
  if (!acceptor_.is_open()) return;
  spawn(io_.get_executor(), "accepting connections",
        accept_all(
            acceptor_, [this](asio::ip::tcp::socket socket) { accept(std::move(socket)); },
            [&handler](const std::string& line) { handler.on_message(line); }));
}

void PeerMesh::begin(ReplicaId self, std::string self_name, const Digest& token, std::size_t frame_limit,
                     const BufferPool& chunks) {
  self_.id = self;
  self_.name = std::move(self_name);
  self_.token = token;
  self_.frame_limit = frame_limit;
  self_.chunks = chunks;
  self_.begun = true;
  ways_.set(self_.id, told_);
  waiting_.cancel();
}

// ---- peers ----

bool PeerMesh::up(ReplicaId peer) const {
  const auto place = peers_.find(peer);
  return place != peers_.end() && (place->second->up() || ways_.open(peer));
}

bool PeerMesh::backed_up() const {
  if (closed_) return false;  // the calendar holds the frames, not the path
  return std::ranges::any_of(peers_, [](const auto& entry) { return entry.second->outbox.has_rounds(); });
}

void PeerMesh::set_peers(const std::vector<PeerInfo>& peers) {
  std::map<ReplicaId, PeerPtr> next;
  std::vector<PeerPtr> fresh;
  for (const auto& info : peers) {
    std::optional<Address> address;
    if (!info.address.empty()) address = parse_address(info.address, "the address of " + info.name);
    const auto known = peers_.find(info.id);
    auto peer = known != peers_.end() ? known->second : make_peer(info, address);
    if (info.id == self_.id || !next.emplace(info.id, peer).second)
      throw Error(ErrorKind::network, info.name + " is named twice among the members");
    if (known == peers_.end()) fresh.push_back(std::move(peer));
  }
  const auto before = std::exchange(peers_, std::move(next));
  for (const auto& [id, peer] : before) {
    if (peers_.contains(id)) continue;
    peer->retire();
    static_cast<void>(ways_.close(id));
    for (const auto& [other, stays] : peers_) stays->outbox.forget_relayed(id);
    paths_lost_with(id);
  }
  for (const auto& peer : fresh) {
    if (!peer->address) continue;
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      spawn(io_.get_executor(), "the connections to " + peer->info.name, dial_loop(peer, lane));
  }
  waiting_.cancel();
}

PeerPtr PeerMesh::make_peer(const PeerInfo& info, std::optional<Address> address) {
  std::vector<Lane> lanes;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    lanes.emplace_back(io_);
    lanes.back().down_since = Connection::Clock::now();
  }
  return std::make_shared<Peer>(Peer{.info = info,
                                     .address = std::move(address),
                                     .lanes = std::move(lanes),
                                     .last_up = clock_.now(),
                                     .outbox = Outbox(lanes_),
                                     .arrivals = Arrivals(lanes_),
                                     .link = EmulatedLink(link_.emulate, self_.id ^ info.id),
                                     .pacer = {},
                                     .link_free = asio::steady_timer(io_),
                                     .relay_tried = clock_.now()});
}

// ---- sending ----

void PeerMesh::send(ReplicaId peer, std::uint64_t order, const protocol::ChunkMessage& message,
                    const protocol::SharedBytes& packed) {
  dispatch(peer, order, chunk_frame(message, packed), {message.view, message.key});
}

void PeerMesh::drop_exchanges(protocol::MemberIndex sender, FragmentLayout::ChunkSpan chunks,
                              std::uint64_t before) {
  for (const auto& [id, peer] : peers_) peer->outbox.drop_exchanges(sender, chunks, before);
}

void PeerMesh::say_begun(ReplicaId peer, protocol::ViewNumber view) {
  dispatch(peer, 0, begun_frame(view), {view, std::nullopt});
}

void PeerMesh::dispatch(ReplicaId peer, std::uint64_t order, Frame frame, Outbox::Receipt receipt) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  if (at->second->up()) return put(at->second, order, std::move(frame), receipt);
  if (!ways_.open(peer)) return;
  receipt.beyond = peer;
  const auto session = static_cast<std::uint32_t>(ways_.hail(peer).session);
  put(peers_.at(*ways_.relay_to(peer)), order, relayed_frame(self_.id, peer, std::move(frame), session),
      receipt);
}

void PeerMesh::acknowledge(ReplicaId peer, protocol::ViewNumber view, const protocol::ChunkKey& key) {
  if (!peers_.contains(peer) || !handling_.lane) return;
  auto ack = ack_frame(view, key);
  handling_.lane->send(handling_.origin == peer ? relayed_frame(self_.id, peer, std::move(ack))
                                                : std::move(ack));
}

void PeerMesh::view_begun(protocol::ViewNumber view) {
  view_ = view;
  for (const auto& [id, peer] : peers_) peer->outbox.view_begun(view);
}

void PeerMesh::put(const PeerPtr& peer, std::uint64_t order, Frame frame, const Outbox::Receipt& receipt) {
  if (!peer->up()) return;
  if (peer->outbox.bytes() >= max_queued(*peer)) {
    stranger_line_("dropped the connections to " + peer->info.name + ": it does not read, and " +
                   std::to_string(peer->outbox.bytes()) + " bytes wait for it");
    peer->close_lanes();
    return peer->outbox.clear();
  }
  peer->outbox.put(std::move(frame), order, receipt);
  feed(peer);
}

/// The limit applies once more for each pair that sends relayed chunks over these lanes.
std::size_t PeerMesh::max_queued(const Peer& peer) const {
  const auto times = 1 + ways_.over(peer.info.id);
  return link_.max_queued > SIZE_MAX / times ? SIZE_MAX : link_.max_queued * times;
}

/// The first free lane takes the frame that is due first. If one lane is fast enough, it carries everything
/// and stays warm; spread over all lanes, each chunk would be as late as the slowest lane.
/// All peers share the uplink, so exchanges wait until no chunk of a round is queued for any of them.
void PeerMesh::feed(const PeerPtr& peer) {
  const bool had_rounds = peer->outbox.has_rounds();
  send_queued(peer);
  if (had_rounds && !peer->outbox.has_rounds()) feed_held();
}

void PeerMesh::feed_held() {
  for (const auto& [id, peer] : peers_) {
    if (peer->held) send_queued(peer);
  }
}

void PeerMesh::send_queued(const PeerPtr& peer) {
  if (closed_) return;
  const auto is_ready = [&](std::size_t lane) {
    const auto& connection = peer->lanes[lane].connection;
    return connection != nullptr && connection->ready();
  };
  const auto has_rounds = [](const auto& entry) { return entry.second->outbox.has_rounds(); };
  for (std::size_t lane = 0; !peer->outbox.empty();) {
    peer->held = !peer->outbox.has_rounds() && std::ranges::any_of(peers_, has_rounds);
    if (peer->held) return;
    const auto now = Connection::Clock::now();
    if (must_wait(peer, now)) return;
    while (lane < lanes_ && !is_ready(lane)) ++lane;
    if (lane == lanes_) return;
    send_on_lane(*peer, lane, *peer->outbox.take(lane, clock_.now()), now);
  }
  peer->held = false;
}

void PeerMesh::send_on_lane(Peer& peer, std::size_t lane, Frame frame, Connection::Clock::time_point now) {
  const auto bytes = size_of(frame);
  if (peer.pacer) peer.pacer->take(bytes, now);
  const auto hold = peer.link.put(bytes, now);
  if (peer.far) peer.see_what_left(lane, now);
  peer.lanes[lane].connection->send(std::move(frame), hold);
}

void PeerMesh::close(bool closed) {
  if (std::exchange(closed_, closed) == closed || closed) return;
  for (const auto& [id, peer] : peers_) feed(peer);
}

/// Takes over one frame at a time: enough to reveal a broken lane without filling another.
void PeerMesh::take_over_overdue(const PeerPtr& peer) {
  if (closed_) return;
  const auto now = Connection::Clock::now();
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const auto& connection = peer->lanes[lane].connection;
    if (!connection || !connection->ready()) continue;
    auto frame = peer->outbox.take_overdue(lane, clock_.now());
    if (frame) return send_on_lane(*peer, lane, *std::move(frame), now);
  }
}

bool PeerMesh::must_wait(const PeerPtr& peer, Connection::Clock::time_point now) {
  auto free = peer->link.free_at(now);
  if (peer->pacer) free = std::max(free, peer->pacer->next(now));
  if (free <= now) return false;
  if (std::exchange(peer->waits_for_link, true)) return true;
  peer->link_free.expires_at(free);
  peer->link_free.async_wait([this, peer](const asio::error_code&) {
    peer->waits_for_link = false;
    if (!peer->gone) feed(peer);
  });
  return true;
}

void PeerMesh::tick() {
  const auto now = Connection::Clock::now();
  for (const auto& [id, peer] : peers_) {
    cut_stalled(*peer);
    take_over_overdue(peer);
  }
  feed_held();  // a peer with rounds may be gone
  rates_.tick(peers_, now);
  for (const auto& [id, peer] : peers_) peer->say_arrived(now);
  prefer_relays();
  hail_all();
}

std::vector<protocol::PathReport> PeerMesh::paths() const {
  const auto microseconds = [](RateFollower::Time time) {
    const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(count, 0, UINT32_MAX));
  };
  std::vector<protocol::PathReport> paths;
  for (const auto& [id, peer] : peers_) {
    if (!peer->up() || peer->by_mailbox() || peer->last_tick.round_trip == RateFollower::Time{}) continue;
    paths.push_back({id, microseconds(peer->last_tick.round_trip), microseconds(peer->last_tick.shortest),
                     rates_.delivers(*peer), rates_.at_least(*peer)});
  }
  return paths;
}

// ---- receiving ----

asio::awaitable<void> PeerMesh::serve(PeerPtr peer, std::size_t lane, ConnectionPtr connection) {
  try {
    lane_up(peer, lane, connection);
    while (!peer->gone) {
      auto frame = co_await connection->receive(self_.frame_limit, &*self_.chunks);
      if (peer->gone) break;
      handling_.lane = connection;
      take(*peer, std::move(frame));
      handling_.lane = nullptr;
      if (connection->queued_bytes() > max_queued(*peer))
        throw Error(ErrorKind::network, "it asks for more answers than it reads");
    }
  } catch (const Damaged& damage) {  // not a breach by the peer
    if (!peer->gone)
      stranger_line_("a " + damage.thing() + " of " + peer->info.name + " (" + connection->remote() + ") " +
                     damage.how() + "; its connection is dropped, the " + damage.thing() + " is sent again");
  } catch (const Dropped& dropped) {
    if (!peer->gone) stranger_line_(lost_connection(*peer, *connection, dropped.what()));
  } catch (const Error& error) {
    if (!peer->gone) count_breach(*peer, *connection, error.what());
  } catch (const asio::system_error&) {
    // A broken lane is dialled again; `unreachable` lists a peer that stays away.
  } catch (const std::exception& error) {
    if (!peer->gone) stranger_line_(lost_connection(*peer, *connection, error.what()));
  }
  handling_.lane = nullptr;
  handling_.origin.reset();
  connection->close();
  if (peer->lanes[lane].connection == connection) lane_down(peer, lane);
}

void PeerMesh::take(Peer& peer, Connection::Received frame) {
  if (frame.relay)
    return frame.relay->to == self_.id ? handle_relayed(peer, std::move(frame))
                                       : carry(peer, std::move(frame));
  const auto from = peer.info.id;
  if (frame.type == FrameType::begun) {
    const auto view = from_bytes<protocol::ViewNumber>(*frame.body);
    handling_.lane->send(begun_heard_frame(view));
    return handler_.on_begun(from, view);
  }
  if (frame.type == FrameType::begun_heard)
    return acknowledged(peer, {from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt});
  if (frame.type == FrameType::ack) {
    acknowledged(peer, {frame.head.view, key_of(frame.head)});
    return handler_.on_ack(from, frame.head.view, key_of(frame.head));
  }
  if (frame.type == FrameType::bridge_wanted) {
    const auto wanted = from_bytes<BridgeWanted>(*frame.body);
    if (const auto at = peers_.find(from); at != peers_.end() && peer.address)
      spawn(io_.get_executor(), "the bridge at " + peer.info.name, dial_bridge(at->second, wanted.number));
    return;
  }
  if (frame.type == FrameType::arrived)
    return peer.handle_arrived(from_bytes<Arrived>(*frame.body), Connection::Clock::now());
  if (frame.type != FrameType::chunk)
    throw Error(ErrorKind::network, "a frame that has no place on a bulk connection");
  const auto problem = handler_.on_chunk(peer.info.id, std::move(frame));
  if (problem) throw Error(ErrorKind::network, *problem);
}

/// Acknowledgements come back on the lane on which the chunk was sent.
void PeerMesh::acknowledged(Peer& peer, const Outbox::Receipt& receipt) {
  const auto lane = std::ranges::find(peer.lanes, handling_.lane, &Lane::connection);
  const auto index = static_cast<std::size_t>(lane - peer.lanes.begin());
  peer.outbox.acknowledged(receipt, clock_.now(),
                           lane == peer.lanes.end() ? std::nullopt : std::optional(index));
}

void PeerMesh::count_breach(Peer& peer, const Connection& connection, const std::string& why) {
  stranger_line_(lost_connection(peer, connection, why));
  if (++peer.breaches >= max_breaches) handler_.on_broken_peer(peer.info.id, why);
}

}  // namespace isthmus::outer_sync::transport
