#pragma once
// Feeds an input to a coordinator. The input is a sequence of messages: the sender (one of eight connections;
// 255 closes the next one instead), two bytes of length, and the message. A tick precedes each message.

#include "network_support.h"

namespace isthmus::outer_sync {

inline constexpr std::size_t talking_connections = 8;

/// `look` is called after each message.
template <class Look>
void talk(protocol::Coordinator& coordinator, std::span<const std::byte> rest, const Look& look) {
  using namespace std::chrono_literals;
  protocol::Time now = 0s;
  while (rest.size() >= 3) {
    const auto who = std::to_integer<unsigned>(rest[0]);
    const auto length = std::to_integer<std::size_t>(rest[1]) | std::to_integer<std::size_t>(rest[2]) << 8;
    const auto bytes = rest.subspan(3, std::min(length, rest.size() - 3));
    rest = rest.subspan(3 + bytes.size());
    const protocol::ConnectionId from = 1 + who % talking_connections;
    now += 10ms;
    coordinator.tick(now);
    if (who == 255) {
      coordinator.closed(from);
    } else if (auto message = unless_refused([&] { return protocol::decode_control(bytes); })) {
      const bool taken = unless_refused([&] {
                           coordinator.receive(from, now, *message);
                           return true;
                         }).has_value();
      if (!taken) coordinator.closed(from);  // like the node
    } else {
      coordinator.closed(from);
    }
    look(now);
  }
}

}  // namespace isthmus::outer_sync
