#pragma once
// The check of ids against the vocabulary, at memory's speed: it is made of everything that is read.

#include <cstddef>
#include <cstdint>

namespace isthmus::data {

/// The highest of `count` ids of `width` bytes (2 or 4, little-endian, unsigned, aligned to it); 0 of none.
[[nodiscard]] std::uint32_t highest_id(const std::byte* ids, std::uint32_t width, std::uint64_t count);

}  // namespace isthmus::data
