#pragma once
// Versions by which two processes of a run decide whether they understand each other (docs/compatibility.md).

#include <cstdint>

namespace isthmus::outer_sync::protocol {

/// Raise it whenever a message changes its form or meaning.
inline constexpr std::uint32_t protocol_version = 14;
/// The oldest protocol that this build still speaks. Two builds work together if the protocol of each is no
/// older than the other's oldest; others are refused by version and build.
inline constexpr std::uint32_t oldest_protocol = 12;
/// Raise it whenever encoded bytes or agreed arithmetic change their bits.
inline constexpr std::uint32_t numerics_version = 2;

}  // namespace isthmus::outer_sync::protocol
