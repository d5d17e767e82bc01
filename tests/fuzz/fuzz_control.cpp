// Decodes arbitrary bytes as a control message: the decoder throws Error(network), or encoding the message
// gives the same bytes.

#include "network_support.h"

using namespace isthmus;
using namespace isthmus::outer_sync;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = unless_refused([&] { return protocol::decode_control(bytes); });
  if (!message) return 0;
  // The decoder skips part of a hello of another protocol version.
  const auto* hello = std::get_if<protocol::Hello>(&*message);
  if (hello != nullptr && hello->protocol != protocol::protocol_version) return 0;
  require(std::ranges::equal(protocol::encode(*message), bytes), "a message with two encodings");
  return 0;
}
