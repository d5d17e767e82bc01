#pragma once
// Who carries what for whom, as the coordinator has said, and whether the ways by relays are open. It has no
// sockets and reads no clock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "isthmus/outer_sync/protocol/messages.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// A way to another member is open once that one has been heard by it: then all three know of the relay, and
/// nothing that is sent is dropped for want of that. A way that was lost opens again with another session, so
/// that both ends send once more what may be gone.
class RelayWays {
 public:
  enum class Heard {
    before,  ///< the way was open
    anew     ///< it is open now, and what was sent before may be lost
  };

  /// All relays there are, as `self` sees them. Ways that stay as they were stay open.
  void set(protocol::ReplicaId self, const protocol::Relays& relays);

  /// Whether this member carries what these two send each other.
  [[nodiscard]] bool carries(protocol::ReplicaId a, protocol::ReplicaId b) const;
  /// To whom this member carries what is `from` that one, and whose chunks it carries there.
  [[nodiscard]] std::set<protocol::ReplicaId> carried_from(protocol::ReplicaId from) const;
  /// All between whom it carries, each pair both ways.
  using Carried = std::map<protocol::ReplicaId, std::set<protocol::ReplicaId>>;
  [[nodiscard]] const Carried& carried() const { return carried_; }
  /// How many pairs of which one sends its chunks to the other over the lanes between this member and `peer`.
  [[nodiscard]] std::size_t over(protocol::ReplicaId peer) const;

  /// The relay between this member and `peer`.
  [[nodiscard]] std::optional<protocol::ReplicaId> relay_to(protocol::ReplicaId peer) const;
  [[nodiscard]] bool open(protocol::ReplicaId peer) const;
  /// To these there is a relay.
  [[nodiscard]] std::vector<protocol::ReplicaId> peers() const;
  /// Of these, those whose relay this is.
  [[nodiscard]] std::vector<protocol::ReplicaId> peers_by(protocol::ReplicaId relay) const;
  /// Whether the other end is still to be hailed.
  [[nodiscard]] bool hails(protocol::ReplicaId peer) const;
  [[nodiscard]] Hail hail(protocol::ReplicaId peer) const;
  /// Requires `relay_to(peer)`.
  [[nodiscard]] Heard heard(protocol::ReplicaId peer, const Hail& hail);
  /// The way is lost. Returns whether it was open.
  bool close(protocol::ReplicaId peer);

 private:
  struct Way {
    protocol::ReplicaId by = 0;
    std::uint64_t session = 0;
    std::uint64_t heard = 0;  ///< the other end's; 0: the way is not open
    bool confirmed = false;   ///< the other end has answered with this `session`
  };
  std::uint64_t sessions_ = 0;
  Carried carried_;
  std::map<protocol::ReplicaId, Way> ways_;  ///< by the other end
};

}  // namespace isthmus::outer_sync::transport
