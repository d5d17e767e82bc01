// Arbitrary control messages to a coordinator, with seeds that begin with hellos: it rejects messages only
// with Error(network), and sends only messages that can be decoded. Inputs: coordinator_talk.h.

#include "coordinator_talk.h"

using namespace isthmus;
using namespace isthmus::outer_sync;
using namespace std::chrono_literals;

namespace {

void check(protocol::Coordinator& coordinator) {
  for (const auto& action : coordinator.take_actions()) {
    if (const auto* send = std::get_if<protocol::SendControl>(&action)) {
      const auto bytes = protocol::encode(send->message);
      const auto read = unless_refused([&] { return protocol::decode_control(bytes); });
      require(read && protocol::encode(*read) == bytes, "a sent message cannot be decoded");
    } else if (const auto* store = std::get_if<protocol::Store>(&action)) {
      require(store->view.number <= protocol::highest_view, "a view beyond the last");
    } else if (const auto* gathered = std::get_if<protocol::Gathered>(&action)) {
      require(coordinator.members().contains(gathered->member), "records of an unknown member");
      require(!gathered->records.empty() && gathered->left_out <= protocol::max_records,
              "no records, or too many left out");
    }
  }
  require(coordinator.members().size() <= talking_connections, "more members than connections");
  for (const auto& [a, b, by] : coordinator.relays())
    require(a < b && by != a && by != b, "an invalid relay");
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
  talk(coordinator, std::as_bytes(std::span(data, size)), [&](protocol::Time) { check(coordinator); });
  return 0;
}
