#pragma once
// Binary archives for messages and checkpoints: little-endian, no type information, bounds-checked when
// reading. They are cereal archives: a type with `template <class Archive> void serialize(Archive& ar) {
// ar(a, b); }` works with both. Vectors and strings are a u32 count and their elements. A count is checked
// against the remaining bytes before anything is allocated, because the bytes may be untrusted.

#include <array>
#include <bit>
#include <cassert>
#include <cereal/cereal.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/base/error.h"

namespace isthmus {

static_assert(std::endian::native == std::endian::little, "the archives copy native little-endian numbers");

/// `Bytes(n)` holds n bytes with unspecified values.
using Bytes = AlignedVector<std::byte>;

class BinaryWriter : public cereal::OutputArchive<BinaryWriter, cereal::AllowEmptyClassElision> {
 public:
  BinaryWriter() : OutputArchive(this) {}
  /// Overwrites `memory` and reuses its capacity: nothing is allocated until that is exceeded.
  explicit BinaryWriter(Bytes memory) : OutputArchive(this), bytes_(std::move(memory)) { bytes_.clear(); }
  /// Reserves memory for this number of further bytes.
  void expect(std::size_t size) { bytes_.reserve(bytes_.size() + size); }
  void raw(const void* data, std::size_t size) {
    const auto at = bytes_.size();
    bytes_.resize(at + size);
    if (size > 0) std::memcpy(bytes_.data() + at, data, size);
  }
  void count(std::size_t n) {
    assert(n <= std::numeric_limits<std::uint32_t>::max());
    const auto written = static_cast<std::uint32_t>(n);
    raw(&written, sizeof written);
  }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Throws Error(network) if the bytes end too early or a count is impossible. Every value has only one
/// encoding: written again, it gives the same bytes.
class BoundedReader : public cereal::InputArchive<BoundedReader, cereal::AllowEmptyClassElision> {
 public:
  explicit BoundedReader(std::span<const std::byte> bytes) : InputArchive(this), rest_(bytes) {}
  void raw(void* data, std::size_t size) {
    if (size > rest_.size()) fail("ends too early");
    if (size > 0) std::memcpy(data, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  /// Reads a count of elements, each of which takes at least `least` (>= 1) of the remaining bytes.
  [[nodiscard]] std::size_t count(std::size_t least) {
    std::uint32_t n = 0;
    raw(&n, sizeof n);
    if (n > rest_.size() / least) fail("has a count that exceeds the bytes that follow");
    return n;
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }
  /// Throws unless every byte was read: trailing bytes mean that the two ends disagree on the format.
  void finish() const {
    if (!rest_.empty()) fail("has bytes left over");
  }
  [[noreturn]] static void fail(const char* what) {
    throw Error(ErrorKind::network, std::string("message ") + what);
  }

 private:
  std::span<const std::byte> rest_;
};

// Enums use cereal's own functions, as their underlying type.
template <class T>
concept Number = std::is_arithmetic_v<T>;
/// Elements of vectors that are copied as one block of memory. Not bool: most bit patterns in a bool are
/// undefined behaviour.
template <class T>
concept Block = (std::is_arithmetic_v<T> || std::is_enum_v<T>)&&!std::is_same_v<T, bool>;

template <Number T>
void CEREAL_SAVE_FUNCTION_NAME(BinaryWriter& ar, const T& value) {
  ar.raw(&value, sizeof value);
}
template <Number T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedReader& ar, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    std::uint8_t byte = 0;  // any other bit pattern in a bool is undefined behaviour
    ar.raw(&byte, 1);
    if (byte > 1) ar.fail("has a bool that is neither 0 nor 1");
    value = byte != 0;
  } else {
    ar.raw(&value, sizeof value);
  }
}
inline void CEREAL_SAVE_FUNCTION_NAME(BinaryWriter& ar, const std::string& text) {
  ar.count(text.size());
  ar.raw(text.data(), text.size());
}
inline void CEREAL_LOAD_FUNCTION_NAME(BoundedReader& ar, std::string& text) {
  text.resize(ar.count(1));
  ar.raw(text.data(), text.size());
}
template <class T, class Allocator>
void CEREAL_SAVE_FUNCTION_NAME(BinaryWriter& ar, const std::vector<T, Allocator>& items) {
  ar.count(items.size());
  if constexpr (Block<T>) {
    ar.raw(items.data(), items.size() * sizeof(T));
  } else {
    for (const auto& item : items) ar(item);
  }
}
template <class T, class Allocator>
void CEREAL_LOAD_FUNCTION_NAME(BoundedReader& ar, std::vector<T, Allocator>& items) {
  if constexpr (Block<T>) {
    items.resize(ar.count(sizeof(T)));
    ar.raw(items.data(), items.size() * sizeof(T));
  } else {
    const auto n = ar.count(1);
    items.clear();
    for (std::size_t i = 0; i < n; ++i) ar(items.emplace_back());
  }
}
template <class A, class B>
void CEREAL_SERIALIZE_FUNCTION_NAME(BinaryWriter& ar, std::pair<A, B>& pair) {
  ar(pair.first, pair.second);
}
template <class A, class B>
void CEREAL_SERIALIZE_FUNCTION_NAME(BoundedReader& ar, std::pair<A, B>& pair) {
  ar(pair.first, pair.second);
}

}  // namespace isthmus

CEREAL_SETUP_ARCHIVE_TRAITS(isthmus::BoundedReader, isthmus::BinaryWriter)

namespace isthmus {

template <class T>
[[nodiscard]] Bytes to_bytes(const T& value) {
  BinaryWriter writer;
  writer(value);
  return writer.take();
}
/// Reads the whole span as one T; throws Error(network) if it is anything else.
template <class T>
[[nodiscard]] T from_bytes(std::span<const std::byte> bytes) {
  T value;
  BoundedReader reader(bytes);
  reader(value);
  reader.finish();
  return value;
}

}  // namespace isthmus
