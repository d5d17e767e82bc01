#pragma once
// CRC32C, the Castagnoli polynomial (RFC 3720, appendix B.4): detects damage on a wire or in memory, not
// deliberate changes. Computed by ISA-L with the CPU's instructions.

#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus {

/// Checksum of `bytes` following bytes with the checksum `before`, so a checksum can be computed piece by
/// piece.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace isthmus
