#pragma once
// The token ids of a data set in any format: one sequence of ids, document after document.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "isthmus/base/hash.h"

namespace isthmus::data {

/// Immutable; every function may be called from any thread. Formats on disk keep only an index in memory.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  [[nodiscard]] virtual std::uint64_t tokens() const = 0;
  /// Bytes of an id as read() writes it, unsigned and little-endian: 2 or 4.
  [[nodiscard]] virtual std::uint32_t width() const = 0;
  /// Ids in a block; reading whole blocks is fastest. 0 if the format has no blocks.
  [[nodiscard]] virtual std::uint64_t block_tokens() const = 0;
  /// Where a held-out part of at least `wanted` ids begins: at the border of a document if the format knows
  /// any, else `wanted` before the end.
  [[nodiscard]] virtual std::uint64_t heldout_begin(std::uint64_t wanted) const = 0;
  /// Writes the ids [begin, begin + count), which must exist, as count * width() bytes. Throws Error(data)
  /// naming file, offset and reason: it cannot be read, has become shorter, or does not match its checksum.
  virtual void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const = 0;
  /// "FILE, offset N": the location of an id, for messages.
  [[nodiscard]] virtual std::string place(std::uint64_t token) const = 0;
  /// The id that ends documents, if the format defines it.
  [[nodiscard]] virtual std::optional<std::uint32_t> separator() const { return {}; }
  /// Hash of the contents, or of samples of large ones.
  [[nodiscard]] virtual Digest fingerprint() const = 0;
};

/// The id at `index` among ids that read() has written, each of `width` bytes.
[[nodiscard]] inline std::uint32_t id_at(const std::byte* ids, std::uint32_t width, std::uint64_t index) {
  std::uint32_t id = 0;
  std::memcpy(&id, ids + index * width, width);
  return id;
}

}  // namespace isthmus::data
