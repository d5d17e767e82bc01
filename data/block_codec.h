#pragma once
// One block of a store: ids and where documents begin among them, to bytes and back.
//
// Its bytes (a record): u32 size of what follows of the ids; the ids, each in stored_width() bytes, as one
// zstd frame or LZ4 block, or as they are where that is not smaller; then, to the end, for each document that
// begins in the block how many ids further than the last one (the first: than the block's begin), as a varint
// (LEB128).

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

/// Used by one thread at a time. The bytes depend on what is encoded alone, not on what was before.
class BlockEncoder {
 public:
  explicit BlockEncoder(const StoreSpec& spec);
  ~BlockEncoder();
  BlockEncoder(const BlockEncoder&) = delete;
  BlockEncoder& operator=(const BlockEncoder&) = delete;

  /// `ids` are in stored_width() bytes each, `starts` ascend and are below their number. `record` is
  /// replaced.
  void encode(std::span<const std::byte> ids, std::span<const std::uint32_t> starts, Bytes& record);

 private:
  struct Context;
  [[nodiscard]] std::size_t compress(std::span<const std::byte> ids, std::span<std::byte> out);
  StoreSpec spec_;
  std::unique_ptr<Context> context_;
};

/// Used by one thread at a time. Takes memory for what it needs once. All functions believe nothing of what
/// is in a record; they return what is wrong with it, or nothing.
class BlockDecoder {
 public:
  explicit BlockDecoder(const StoreSpec& spec);
  ~BlockDecoder();
  BlockDecoder(const BlockDecoder&) = delete;
  BlockDecoder& operator=(const BlockDecoder&) = delete;

  /// `out` has room for the block's ids, in spec.width() bytes each, and decides how many are expected.
  [[nodiscard]] std::string_view ids(std::span<const std::byte> record, std::span<std::byte> out);
  /// `tokens` is the block's number of ids, and `documents` the number that is expected.
  [[nodiscard]] static std::string_view starts(std::span<const std::byte> record, std::uint32_t tokens,
                                               std::uint32_t documents, std::vector<std::uint32_t>& out);

 private:
  struct Context;
  [[nodiscard]] bool decompress(std::span<const std::byte> packed, std::span<std::byte> out);
  StoreSpec spec_;
  std::unique_ptr<Context> context_;
};

}  // namespace isthmus::data::store
