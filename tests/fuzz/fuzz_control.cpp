// Arbitrary bytes as a control message, of either direction: refused by an Error(network), or read, and then
// what was read is written as the same bytes.

#include "network_support.h"

using namespace isthmus;
using namespace isthmus::outer_sync;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = unless_refused([&] { return protocol::decode_control(bytes); });
  if (!message) return 0;
  // Of a hello of another protocol some is passed over.
  const auto* hello = std::get_if<protocol::Hello>(&*message);
  if (hello != nullptr && hello->protocol != protocol::protocol_version) return 0;
  require(std::ranges::equal(protocol::encode(*message), bytes), "a message that has two forms");
  return 0;
}
