// The part of PeerMesh that relays frames, and uses relays.

#include <algorithm>
#include <map>
#include <optional>

#include "isthmus/base/error.h"
#include "net/mesh/peer_mesh.h"

namespace isthmus::outer_sync::transport {

using protocol::ReplicaId;

namespace {

constexpr auto mailbox_hails_every = std::chrono::seconds(1);

/// How long a relayed path may take to open before a peer is reached through the mailbox again. The
/// coordinator waits for half of its detect timeout before it names another relay.
AwakeClock::Clock::duration relay_patience(const LinkOptions& link) {
  constexpr AwakeClock::Clock::duration usual = std::chrono::seconds(6);
  return link.give_up > link.give_up.zero() ? std::min(usual, link.give_up / 4) : usual;
}

}  // namespace

void PeerMesh::set_relays(protocol::Relays relays) {
  told_ = std::move(relays);
  std::vector<std::pair<ReplicaId, ReplicaId>> open;  // peer and its relay
  for (const auto peer : ways_.peers()) {
    if (ways_.open(peer)) open.emplace_back(peer, *ways_.relay_to(peer));
  }
  const auto carried = ways_.carried();
  std::map<ReplicaId, std::optional<ReplicaId>> before;
  for (const auto& [id, peer] : peers_) before[id] = ways_.relay_to(id);
  if (self_.begun) ways_.set(self_.id, told_);
  for (const auto& [id, peer] : peers_) {
    if (ways_.relay_to(id) != before[id]) peer->relay_tried = clock_.now();
  }
  forget_what_is_not_carried_any_more(carried);
  for (const auto& [id, relay] : open) {
    if (ways_.open(id)) continue;
    if (const auto at = peers_.find(relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
    const auto peer = peers_.find(id);
    if (peer == peers_.end() || peer->second->up()) continue;
    peer->second->last_up = clock_.now();
    handler_.on_peer_down(id);
  }
}

/// Drops frames that this member no longer relays: receivers may ignore them, and then never acknowledge
/// them.
void PeerMesh::forget_what_is_not_carried_any_more(const RelayWays::Carried& before) {
  for (const auto& [from, ends] : before) {
    for (const auto to : ends) {
      const auto target = peers_.find(to);
      if (target != peers_.end() && !ways_.carries(from, to)) target->second->outbox.forget_relayed(from);
    }
  }
}

std::vector<ReplicaId> PeerMesh::relayed() const {
  std::vector<ReplicaId> relayed;
  for (const auto id : ways_.peers()) {
    const auto at = peers_.find(id);
    if (at != peers_.end() && !at->second->up()) relayed.push_back(id);
  }
  return relayed;
}

/// The mailbox leads to the peer and to the relay, so the relay would be a detour.
bool PeerMesh::only_by_mailbox(const Peer& peer, const Peer& relay) const {
  return relay.by_mailbox() && link_.mailbox && peer.address && is_mailbox_host(peer.address->host);
}

/// Whether the peer is better not dialled through the mailbox: the path through its relay is open, or may
/// open soon.
bool PeerMesh::a_relay_may_help(const Peer& peer) const {
  const auto id = peer.info.id;
  const auto relay = ways_.relay_to(id);
  if (!relay) return false;
  if (ways_.open(id)) return true;
  const auto at = peers_.find(*relay);
  return at != peers_.end() && at->second->up() && !only_by_mailbox(peer, *at->second) &&
         clock_.now() - peer.relay_tried <= relay_patience(link_);
}

/// A relay passes a frame on in milliseconds, the mailbox in seconds. Lanes through the mailbox are given up
/// only once the relayed path works in both directions.
void PeerMesh::prefer_relays() {
  for (const auto id : ways_.peers()) {
    const auto at = peers_.find(id);
    if (at == peers_.end() || !at->second->address || !is_mailbox_host(at->second->address->host)) continue;
    auto& peer = *at->second;
    if (peer.up() ? !ways_.works(id) : !a_relay_may_help(peer)) continue;
    for (auto& lane : peer.lanes) lane.stop_dialling();
    if (!peer.by_mailbox()) continue;
    peer.relay_tried = clock_.now();  // it opens anew, to repeat frames lost with the lanes
    peer.close_lanes();
  }
}

/// Sends hails on relayed paths until both ends have received one, fewer of them to a peer that is reached
/// through the mailbox meanwhile.
void PeerMesh::hail_all() {
  for (const auto id : ways_.peers()) {
    const auto peer = peers_.find(id);
    const auto relay = peers_.find(*ways_.relay_to(id));
    if (peer == peers_.end() || relay == peers_.end()) continue;
    auto& other = *peer->second;
    if (!relay->second->up() || !ways_.hails(id) || only_by_mailbox(other, *relay->second)) continue;
    if (other.up() && (!other.by_mailbox() || clock_.now() - other.hailed < mailbox_hails_every)) continue;
    other.hailed = clock_.now();
    send_at_once(*relay->second,
                 relayed_frame(self_.id, id, {FrameType::hail, to_bytes(ways_.hail(id)), nullptr}));
  }
}

/// Sends a frame on any open lane, without keeping or repeating it.
void PeerMesh::send_at_once(Peer& peer, Frame frame) {
  for (auto& lane : peer.lanes) {
    if (!lane.connection || !lane.connection->open()) continue;
    lane.connection->send(std::move(frame));
    if (lane.connection->queued_bytes() > max_queued(peer)) lane.connection->close();
    return;
  }
}

/// Relays a peer's frame to another one. Invalid frames are detected here as this peer's fault, so that the
/// other end need not blame the relay.
void PeerMesh::carry(Peer& peer, Connection::Received frame) {
  const auto from = frame.relay->from, to = frame.relay->to;
  if (from != peer.info.id)
    throw Error(ErrorKind::network, "a frame to be relayed in the name of another member");
  const auto found = peers_.find(to);
  const bool possible = ways_.carries(from, to) && found != peers_.end() && found->second->up();
  const auto pass_on = [&] {
    if (possible) send_at_once(*found->second, relayed_frame(from, to, frame_of(frame)));
  };
  switch (frame.type) {
    case FrameType::hail:
      static_cast<void>(from_bytes<Hail>(*frame.body));
      return pass_on();
    case FrameType::ack:
      acknowledged(peer, {frame.head.view, key_of(frame.head), to});
      return pass_on();
    case FrameType::begun_heard:
      return acknowledged(peer, {from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt, to});
    case FrameType::chunk:
    case FrameType::begun:
      return keep_for(possible ? found->second : nullptr, std::move(frame));
    default:
      throw Error(ErrorKind::network, "a frame that only a relay may send");
  }
}

/// A relay is responsible for a frame until the other end acknowledges it, as for its own frames. If it
/// reports a loss (relay_lost), the origin sends the frame again.
void PeerMesh::keep_for(const PeerPtr& target, Connection::Received frame) {
  const auto from = frame.relay->from, to = frame.relay->to;
  const bool is_chunk = frame.type == FrameType::chunk;
  Outbox::Receipt receipt{frame.head.view, key_of(frame.head), from};
  if (!is_chunk) receipt = {from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt, from};
  // More than a member ever has to repeat: this member need not hold it in memory.
  const bool too_much = target && target->outbox.bytes_relayed(from) >= link_.max_queued;
  if (too_much) target->outbox.forget_relayed(from);
  if (!target || too_much)
    return handling_.lane->send(relayed_frame(to, from, {FrameType::relay_lost, {}, nullptr}));
  const auto taken = is_chunk ? header_of(receipt.view, *receipt.key) : header_of(receipt.view, {.kind = {}});
  handling_.lane->send(
      relayed_frame(to, from, {FrameType::relay_taken, bytes_of(taken), nullptr}, frame.relay->session));
  if (receipt.view < view_) return;  // the view is over for the other end too, which would not acknowledge it
  if (is_chunk && receipt.key->kind == protocol::ChunkKind::exchange) {
    const auto chunk = receipt.key->chunk;
    target->outbox.drop_exchanges(receipt.key->sender, {chunk, chunk + 1}, receipt.key->round);
  }
  put(target, is_chunk ? handler_.order_of(*receipt.key) : 0, relayed_frame(from, to, frame_of(frame)),
      receipt);
}

/// Handles a frame from the other end through the relay, or from the relay about the other end.
void PeerMesh::handle_relayed(Peer& relay, Connection::Received frame) {
  const auto from = frame.relay->from;
  const auto origin = peers_.find(from);
  // The relay may have changed meanwhile; frames that came through the old one are sent again.
  if (ways_.relay_to(from) != relay.info.id || origin == peers_.end()) return;
  switch (frame.relay->inner) {
    case FrameType::relay_taken: {
      if (frame.relay->session != static_cast<std::uint32_t>(ways_.hail(from).session)) return;
      Outbox::Receipt receipt{frame.head.view, key_of(frame.head), from};
      if (frame.head.kind == 0) receipt.key.reset();
      return acknowledged(relay, receipt);
    }
    case FrameType::relay_lost:
      return relayed_path_lost(from);
    case FrameType::hail:
      return handle_hail(relay, from, from_bytes<Hail>(*frame.body));
    case FrameType::ack:
      return handler_.on_ack(from, frame.head.view, key_of(frame.head));
    case FrameType::begun: {
      const auto view = from_bytes<protocol::ViewNumber>(*frame.body);
      handling_.lane->send(relayed_frame(self_.id, from, begun_heard_frame(view)));
      return handler_.on_begun(from, view);
    }
    case FrameType::chunk: {
      const auto sender = origin->second;
      handling_.origin = from;
      const auto problem = handler_.on_chunk(from, std::move(frame));
      handling_.origin.reset();
      if (!problem) return;
      count_breach(*sender, *handling_.lane, *problem);
      return relayed_path_lost(from);
    }
    default:
      throw Error(ErrorKind::network, "a frame that may not be relayed");
  }
}

void PeerMesh::handle_hail(Peer& relay, ReplicaId from, const Hail& hail) {
  const auto peer = peers_.at(from);
  if (only_by_mailbox(*peer, relay)) return;
  const bool was_open = ways_.open(from);
  const auto heard = ways_.heard(from, hail);
  if (hail.asks)
    handling_.lane->send(
        relayed_frame(self_.id, from, {FrameType::hail, to_bytes(ways_.hail(from)), nullptr}));
  if (heard == RelayWays::Heard::before || peer->up()) return;
  relay.outbox.forget_relayed(from);
  if (was_open) handler_.on_peer_down(from);
  if (ways_.open(from)) handler_.on_peer_up(from);
}

/// The relayed path to that peer is lost.
void PeerMesh::relayed_path_lost(ReplicaId id) {
  const auto relay = ways_.relay_to(id);
  if (!ways_.close(id)) return;
  if (const auto at = peers_.find(*relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
  const auto peer = peers_.find(id);
  if (peer == peers_.end() || peer->second->up()) return;
  peer->second->last_up = peer->second->relay_tried = clock_.now();
  handler_.on_peer_down(id);
}

/// The relay is lost, with the frames that it held.
void PeerMesh::paths_lost_with(ReplicaId relay) {
  for (const auto id : ways_.peers_by(relay)) relayed_path_lost(id);
}

/// Reports to the origins that frames relayed to `peer` from here are lost.
void PeerMesh::say_lost_to_origins(ReplicaId peer) {
  for (const auto id : ways_.carried_from(peer)) {
    const auto origin = peers_.find(id);
    if (origin == peers_.end() || !origin->second->up()) continue;
    send_at_once(*origin->second, relayed_frame(peer, id, {FrameType::relay_lost, {}, nullptr}));
  }
}

}  // namespace isthmus::outer_sync::transport
