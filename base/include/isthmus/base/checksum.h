#pragma once
// CRC32C, the Castagnoli polynomial (RFC 3720, appendix B.4): what keeps damage of a wire or of memory out,
// and nobody who means harm. ISA-L's implementation, with the CPU's instructions.

#include <cstddef>
#include <cstdint>
#include <span>

namespace isthmus {

/// Of `bytes` behind those whose checksum is `before`: a checksum of pieces is that of all of them in a row.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace isthmus
