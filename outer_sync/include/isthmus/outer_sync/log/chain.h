#pragma once
// The hash chain of a fragment's rounds (docs/protocol.md, Terms).

#include <span>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages/members.h"

namespace isthmus::outer_sync::log {

/// h_r = SHA-256(h_{r-1}, p, r, result bytes in chunk order), with p and r as eight bytes little-endian. How
/// `results` splits the bytes makes no difference. h_0 is 32 zero bytes.
[[nodiscard]] Digest next_chain(const Digest& previous, FragmentId fragment, protocol::Round round,
                                std::span<const std::span<const std::byte>> results);

}  // namespace isthmus::outer_sync::log
