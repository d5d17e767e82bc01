// What a NAT lets in: answers to what has gone out, for a while. Addresses are not translated.
#pragma once

#include <compare>
#include <map>

#include "packet.h"

namespace isthmus::wan_lab {

class Nat {
 public:
  explicit Nat(Nanoseconds timeout) : timeout_(timeout) {}

  /// The site has sent this.
  void outbound(Nanoseconds now, const Packet& packet);

  /// Whether the site gets this: it belongs to a flow that the site began and that was used within the
  /// timeout, or is an ICMP error or a later fragment, which come to nothing without one.
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
