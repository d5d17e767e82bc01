// Arbitrary control messages to a coordinator, beginning with hellos: it refuses by an Error(network) what
// cannot be read, takes the rest as it comes, and says nothing that a member could not read. An input is a
// talk (coordinator_talk.h).

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
      require(read && protocol::encode(*read) == bytes, "it said what nobody can read");
    } else if (const auto* store = std::get_if<protocol::Store>(&action)) {
      require(store->view.number <= protocol::highest_view, "a view beyond the last");
    } else if (const auto* gathered = std::get_if<protocol::Gathered>(&action)) {
      require(coordinator.members().contains(gathered->member), "records of nobody");
      require(!gathered->records.empty() && gathered->left_out <= protocol::max_records,
              "records that cannot be");
    }
  }
  require(coordinator.members().size() <= talking_connections, "more members than connections");
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
  talk(coordinator, std::as_bytes(std::span(data, size)), [&](protocol::Time) { check(coordinator); });
  return 0;
}
