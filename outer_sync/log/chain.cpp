#include "isthmus/outer_sync/log/chain.h"

namespace isthmus::outer_sync::log {

Digest next_chain(const Digest& previous, FragmentId fragment, protocol::Round round,
                  std::span<const std::span<const std::byte>> results) {
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(previous.bytes))).update(fragment).update(round);
  for (const auto bytes : results) hasher.update(bytes);
  return hasher.finish();
}

}  // namespace isthmus::outer_sync::log
