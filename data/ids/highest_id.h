#pragma once
// Checks ids against the vocabulary at memory speed: all data that is read is checked.

#include <cstddef>
#include <cstdint>

namespace isthmus::data {

/// The highest of `count` ids of `width` bytes (2 or 4, little-endian, unsigned, aligned to it); 0 if `count`
/// is 0.
[[nodiscard]] std::uint32_t highest_id(const std::byte* ids, std::uint32_t width, std::uint64_t count);

}  // namespace isthmus::data
