// Arbitrary control messages to a coordinator, beginning with hellos: it refuses by an Error(network) what
// cannot be read, takes the rest as it comes, and says nothing that a member could not read.
//
// An input: of each message who says it (a connection of eight; 255: it closes instead, whoever comes next),
// two bytes of length, the message. A tick comes between two of them.

#include "network_support.h"

using namespace isthmus;
using namespace isthmus::outer_sync;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t connections = 8;

void check(protocol::Coordinator& coordinator) {
  for (const auto& action : coordinator.take_actions()) {
    if (const auto* send = std::get_if<protocol::SendControl>(&action)) {
      const auto bytes = protocol::encode(send->message);
      const auto read = unless_refused([&] { return protocol::decode_control(bytes); });
      require(read && protocol::encode(*read) == bytes, "it said what nobody can read");
    } else if (const auto* store = std::get_if<protocol::Store>(&action)) {
      require(store->view.number <= protocol::highest_view, "a view beyond the last");
    } else if (const auto* gathered = std::get_if<protocol::Gathered>(&action)) {
      require(coordinator.members().contains(gathered->member), "records of nobody");
      require(!gathered->records.empty() && gathered->left_out <= protocol::most_records,
              "records that cannot be");
    }
  }
  require(coordinator.members().size() <= connections, "more members than connections");
  for (const auto& [a, b, by] : coordinator.relays())
    require(a < b && by != a && by != b, "a relay that is none");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  protocol::Coordinator coordinator(
      {.run = "fuzz",
       .judge =
           [](const auto&, const auto& items) {
             return protocol::ChangeVerdict{{}, items.front().first == "network.rate"};
           },
       .replicas = 2,
       .config = {{"outer.codec", "int8"}},
       .token = {},
       .join_timeout = 60s,
       .detect_timeout = 5s,
       .topology = {},
       .last = {},
       .recover = {}},
      0s);
  protocol::Time now = 0s;
  auto rest = std::as_bytes(std::span(data, size));
  while (rest.size() >= 3) {
    const auto who = std::to_integer<unsigned>(rest[0]);
    const auto length = std::to_integer<std::size_t>(rest[1]) | std::to_integer<std::size_t>(rest[2]) << 8;
    const auto bytes = rest.subspan(3, std::min(length, rest.size() - 3));
    rest = rest.subspan(3 + bytes.size());
    const protocol::ConnectionId from = 1 + who % connections;
    now += 10ms;
    coordinator.tick(now);
    if (who == 255) {
      coordinator.closed(from);
    } else if (auto message = unless_refused([&] { return protocol::decode_control(bytes); })) {
      const bool taken = unless_refused([&] {
                           coordinator.receive(from, now, *message);
                           return true;
                         }).has_value();
      if (!taken) coordinator.closed(from);  // as the node does
    } else {
      coordinator.closed(from);
    }
    check(coordinator);
  }
  return 0;
}
