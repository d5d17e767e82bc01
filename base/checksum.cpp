#include "isthmus/base/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <climits>

namespace isthmus {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  auto state = ~before;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), INT_MAX));
    // The function only reads, although its declaration lacks the const.
    auto* const data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data()));
    state = ::crc32_iscsi(data, static_cast<int>(piece.size()), state);
    bytes = bytes.subspan(piece.size());
  }
  return ~state;
}

}  // namespace isthmus
