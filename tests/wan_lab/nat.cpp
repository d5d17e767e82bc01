#include "nat.h"

#include <algorithm>

namespace isthmus::wan_lab {

void Nat::outbound(Nanoseconds now, const Packet& packet) {
  if (packet.later_fragment || packet.icmp_error) return;
  ends_[{packet.protocol, packet.destination, packet.source_port, packet.destination_port}] = now + timeout_;
  if (ends_.size() > forget_at_) forget(now);
}

bool Nat::inbound(Nanoseconds now, const Packet& packet) {
  if (packet.later_fragment || packet.icmp_error) return true;
  const auto flow = ends_.find({packet.protocol, packet.source, packet.destination_port, packet.source_port});
  if (flow == ends_.end() || flow->second < now) return false;
  flow->second = now + timeout_;
  return true;
}

void Nat::forget(Nanoseconds now) {
  std::erase_if(ends_, [&](const auto& flow) { return flow.second < now; });
  forget_at_ = std::max<std::size_t>(1024, 2 * ends_.size());
}

}  // namespace isthmus::wan_lab
