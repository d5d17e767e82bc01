#pragma once
// Sets how fast frames are sent to each peer. A configured rate is shared by the peers that have something
// queued. Otherwise the rate of each path is followed, and if several are in use, also that of this member's
// link, which they share.

#include <map>
#include <string>

#include "net/mesh/peer.h"

namespace isthmus::outer_sync::transport {

class LineRates {
 public:
  using Peers = std::map<protocol::ReplicaId, PeerPtr>;
  using Time = Connection::Clock::time_point;

  /// Uses the congestion control and `system_paces` of `link`.
  explicit LineRates(const LinkOptions& link)
      : congestion_(link.congestion), system_paces_(link.system_paces) {}

  /// Limits the bytes per second to all peers together; 0: follow the measured rates.
  void send_at_most(std::uint64_t bytes_per_second) { most_ = bytes_per_second; }
  /// Rate of the path to that peer in bytes per second; 0 if unknown, or not followed at present.
  [[nodiscard]] std::uint64_t delivers(const Peer& peer) const {
    return most_ > 0 ? 0 : peer.follower.measured();
  }
  /// Lower bound of that rate; 0 if unknown.
  [[nodiscard]] std::uint64_t at_least(const Peer& peer) const {
    return most_ > 0 ? 0 : peer.follower.at_least();
  }
  /// Call every few tens of milliseconds: reads the progress of the lanes and shares out the rate anew.
  void tick(const Peers& peers, Time now);

 private:
  void look_at(Peer& peer, Connection::Clock::duration since);
  static void keep_unsent_short(const Peer& peer, Lane& lane, double delivers);
  void renew_one(Peer& peer, Time now) const;
  void share_out(const Peers& peers, Time now);
  void pace(Peer& peer, std::uint64_t rate) const;

  std::string congestion_;
  bool system_paces_;
  std::uint64_t most_ = 0;
  std::uint64_t delivered_ = 0;  ///< bytes acknowledged since the start by peers on other machines
  Time ticked_{};
  RateFollower all_;  ///< follows this member's own link while it sends to several peers
};

}  // namespace isthmus::outer_sync::transport
