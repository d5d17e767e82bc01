// A NAT's filter: for some time it admits answers to packets that were sent. It does not translate addresses.
#pragma once

#include <compare>
#include <map>

#include "packet.h"

namespace isthmus::wan_lab {

class Nat {
 public:
  explicit Nat(Nanoseconds timeout) : timeout_(timeout) {}

  /// Records a packet that the site sends.
  void outbound(Nanoseconds now, const Packet& packet);

  /// Whether the site receives this packet: it belongs to a flow that the site began and used within the
  /// timeout, or it is an ICMP error or a later fragment, which have no effect without such a flow.
  bool inbound(Nanoseconds now, const Packet& packet);

 private:
  struct Flow {
    std::uint8_t protocol;
    Address peer;
    std::uint16_t port, peer_port;
    auto operator<=>(const Flow&) const = default;
  };

  void forget(Nanoseconds now);

  Nanoseconds timeout_;
  std::map<Flow, Nanoseconds> ends_;
  std::size_t forget_at_ = 1024;  // flows
};

}  // namespace isthmus::wan_lab
