#pragma once
// How fast each peer is sent to. A rate that was set is shared by those who have something to get. Else each
// line is followed on its own, and where several are in use the one that they share, this member's, is too.

#include <map>
#include <string>

#include "net/mesh/peer.h"

namespace isthmus::outer_sync::transport {

class LineRates {
 public:
  using Peers = std::map<protocol::ReplicaId, PeerPtr>;
  using Time = Connection::Clock::time_point;

  /// Of `link` its congestion control, and whether the system spreads packets.
  explicit LineRates(const LinkOptions& link)
      : congestion_(link.congestion), system_paces_(link.system_paces) {}

  /// Bytes per second to all peers together; 0: the line's own rate is followed.
  void send_at_most(std::uint64_t bytes_per_second) { most_ = bytes_per_second; }
  /// What the line to that peer takes; 0 where that is not known, or not followed at present.
  [[nodiscard]] std::uint64_t delivers(const Peer& peer) const {
    return most_ > 0 ? 0 : peer.follower.delivers();
  }
  /// To be called every few ten milliseconds: looks at what the lanes have done since, and shares the rate
  /// out anew.
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
  std::uint64_t delivered_ = 0;  ///< bytes that have been acknowledged since the start, by peers afar
  Time ticked_{};
  RateFollower all_;  ///< of this member's own line, when several peers are sent to
};

}  // namespace isthmus::outer_sync::transport
