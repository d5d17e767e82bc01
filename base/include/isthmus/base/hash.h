#pragma once
// SHA-256 (FIPS 180-4, computed by OpenSSL) for chain hashes, parameter hashes, file checksums and
// fingerprints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

struct Digest {
  std::array<std::uint8_t, 32> bytes{};
  friend bool operator==(const Digest&, const Digest&) = default;
  [[nodiscard]] std::string hex() const;  ///< 64 lower-case digits
  template <class Archive>
  void serialize(Archive& ar) {
    for (auto& b : bytes) ar(b);
  }
};

/// Incremental hash. Integers are hashed as little-endian bytes, so digests are the same on every machine.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  Hasher& update(std::span<const std::byte> bytes);
  Hasher& update(std::string_view text);
  Hasher& update(std::uint64_t number);  ///< eight bytes, little-endian
  [[nodiscard]] Digest finish();         ///< ends this hash; the object starts a new one

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] Digest hash_of(std::span<const std::byte> bytes);

}  // namespace isthmus
