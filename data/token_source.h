#pragma once
// Token ids as a data set holds them, whatever its format: one long line of ids, document after document.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "isthmus/base/hash.h"

namespace isthmus::data {

/// Immutable; every function may be called from any thread. Nothing of the data set is held in memory but
/// what finds its parts.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  [[nodiscard]] virtual std::uint64_t tokens() const = 0;
  /// Bytes of an id as read() writes it, little-endian without a sign: 2 or 4.
  [[nodiscard]] virtual std::uint32_t width() const = 0;
  /// How many ids are best read together, from a multiple of it on: 0 where it is all the same.
  [[nodiscard]] virtual std::uint64_t block_tokens() const = 0;
  /// Where the held-out part begins if it is to have `wanted` ids at least: at the border of a document,
  /// where the format knows of any, else `wanted` before the end.
  [[nodiscard]] virtual std::uint64_t heldout_begin(std::uint64_t wanted) const = 0;
  /// The ids [begin, begin + count), which are there, as count * width() bytes. Throws Error(data) naming
  /// file, offset and reason: it cannot be read, has become shorter, or does not fit its checksum.
  virtual void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const = 0;
  /// "FILE, offset N": where an id stands, for messages.
  [[nodiscard]] virtual std::string place(std::uint64_t token) const = 0;
  /// The id that ends its documents, where the format says.
  [[nodiscard]] virtual std::optional<std::uint32_t> separator() const { return {}; }
  /// Of the contents, or of samples of them where they are large.
  [[nodiscard]] virtual Digest fingerprint() const = 0;
};

/// One of the ids that read() has written, each of `width` bytes.
[[nodiscard]] inline std::uint32_t id_at(const std::byte* ids, std::uint32_t width, std::uint64_t index) {
  std::uint32_t id = 0;
  std::memcpy(&id, ids + index * width, width);
  return id;
}

}  // namespace isthmus::data
