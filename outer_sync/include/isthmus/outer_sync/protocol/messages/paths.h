#pragma once
// Paths between members: their delays and rates, and relays for members that cannot connect to each other.

#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::protocol {

/// A member's path to another member of its view, over all its lanes (paths.h).
struct PathReport {
  ReplicaId peer = 0;
  std::uint32_t round_trip = 0,
                shortest = 0;          ///< microseconds by TCP: present mean; shortest
  std::uint64_t bytes_per_second = 0;  ///< recently delivered while it was full; 0: not known
  std::uint64_t at_least = 0;          ///< most bytes per second delivered in a short time lately
  template <class Archive>
  void serialize(Archive& ar) {
    ar(peer, round_trip, shortest, bytes_per_second, at_least);
  }
};

/// Two members that cannot connect to each other, and the member that forwards their messages.
struct Relay {
  ReplicaId a = 0, b = 0, by = 0;
  friend bool operator==(const Relay&, const Relay&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(a, b, by);
  }
};

/// coordinator -> member: all relays. Replaces the earlier list.
struct Relays {
  std::uint64_t number = 0;  ///< rises; heartbeats report the number in force
  std::vector<Relay> relays;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, relays);
  }
};

}  // namespace isthmus::outer_sync::protocol
