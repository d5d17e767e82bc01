#pragma once
// Which member relays for which pair, as the coordinator has decided, and whether the relayed paths are open.
// No sockets, no clock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/paths.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// A relayed path to another member opens when that member's hail arrives over it: then all three members
/// know of the relay, and no frame is dropped for lack of that. A lost path reopens with a new session, so
/// that both ends repeat what may be lost.
class RelayWays {
 public:
  enum class Heard {
    before,  ///< the path was open already
    anew     ///< the path is open now, and frames sent before may be lost
  };

  /// Sets all relays, as `self` sees them. Unchanged paths stay open.
  void set(protocol::ReplicaId self, const protocol::Relays& relays);

  /// Whether this member relays between these two.
  [[nodiscard]] bool carries(protocol::ReplicaId a, protocol::ReplicaId b) const;
  /// The members between which and `from` this member relays, in both directions.
  [[nodiscard]] std::set<protocol::ReplicaId> carried_from(protocol::ReplicaId from) const;
  /// All pairs that this member relays for, each in both directions.
  using Carried = std::map<protocol::ReplicaId, std::set<protocol::ReplicaId>>;
  [[nodiscard]] const Carried& carried() const { return carried_; }
  /// Number of pairs that send relayed chunks over the lanes between this member and `peer`.
  [[nodiscard]] std::size_t over(protocol::ReplicaId peer) const;

  /// The relay between this member and `peer`, if any.
  [[nodiscard]] std::optional<protocol::ReplicaId> relay_to(protocol::ReplicaId peer) const;
  [[nodiscard]] bool open(protocol::ReplicaId peer) const;
  /// The peers to which there is a relay.
  [[nodiscard]] std::vector<protocol::ReplicaId> peers() const;
  /// The peers that are reached by this relay.
  [[nodiscard]] std::vector<protocol::ReplicaId> peers_by(protocol::ReplicaId relay) const;
  /// Whether the path is open at both ends.
  [[nodiscard]] bool works(protocol::ReplicaId peer) const { return open(peer) && !hails(peer); }
  /// Whether the other end must still be hailed.
  [[nodiscard]] bool hails(protocol::ReplicaId peer) const;
  [[nodiscard]] Hail hail(protocol::ReplicaId peer) const;
  /// Handles a hail from `peer`. Requires `relay_to(peer)`.
  [[nodiscard]] Heard heard(protocol::ReplicaId peer, const Hail& hail);
  /// The path is lost. Returns whether it was open.
  bool close(protocol::ReplicaId peer);

 private:
  struct Way {
    protocol::ReplicaId by = 0;
    std::uint64_t session = 0;
    std::uint64_t heard = 0;  ///< session of the other end; 0: the path is not open
    bool confirmed = false;   ///< the other end has answered with this `session`
  };
  std::uint64_t sessions_ = 0;
  Carried carried_;
  std::map<protocol::ReplicaId, Way> ways_;  ///< by the other end
};

}  // namespace isthmus::outer_sync::transport
