#pragma once
// Encodes and decodes one block of a store: ids, and the positions where documents begin among them.
//
// The encoded bytes (a record): u32 size of the packed ids; the ids, stored_width() bytes each, as one zstd
// frame or LZ4 block, or unpacked if packing does not make them smaller; then, to the end, for each document
// that begins in the block its distance in ids from the previous one's beginning (the first: from the
// block's), as a varint (LEB128).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/data/store.h"

namespace isthmus::data::store {

inline constexpr std::size_t record_head_bytes = 4;

/// Used by one thread at a time. The bytes depend only on the arguments of the call.
class BlockEncoder {
 public:
  explicit BlockEncoder(const StoreSpec& spec);
  ~BlockEncoder();
  BlockEncoder(const BlockEncoder&) = delete;
  BlockEncoder& operator=(const BlockEncoder&) = delete;

  /// `ids` take stored_width() bytes each; `starts` are ascending indexes into them. Replaces `record`.
  void encode(std::span<const std::byte> ids, std::span<const std::uint32_t> starts, Bytes& record);

 private:
  struct Context;
  [[nodiscard]] std::size_t compress(std::span<const std::byte> ids, std::span<std::byte> out);
  StoreSpec spec_;
  std::unique_ptr<Context> context_;
};

/// Used by one thread at a time. Allocates its memory once. Trusts nothing in a record: functions return what
/// is wrong with it, or an empty string.
class BlockDecoder {
 public:
  explicit BlockDecoder(const StoreSpec& spec);
  ~BlockDecoder();
  BlockDecoder(const BlockDecoder&) = delete;
  BlockDecoder& operator=(const BlockDecoder&) = delete;

  /// `out` has the size of the block's ids, in spec.width() bytes each, and so sets the expected number.
  [[nodiscard]] std::string_view ids(std::span<const std::byte> record, std::span<std::byte> out);
  /// `tokens` is the block's number of ids, `documents` the expected number of starts.
  [[nodiscard]] static std::string_view starts(std::span<const std::byte> record, std::uint32_t tokens,
                                               std::uint32_t documents, std::vector<std::uint32_t>& out);

 private:
  struct Context;
  [[nodiscard]] bool decompress(std::span<const std::byte> packed, std::span<std::byte> out);
  StoreSpec spec_;
  std::unique_ptr<Context> context_;
};

}  // namespace isthmus::data::store
