#pragma once
// The chunk store: token ids in compressed blocks, a folder of two files (format: docs/data.md). Reads a
// store's description without its blocks, and verifies whole stores.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "isthmus/base/hash.h"
#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

enum class StoreCodec : std::uint8_t { none, zstd, lz4 };
inline constexpr std::string_view store_codec_names[] = {"none", "zstd", "lz4"};

inline constexpr std::uint32_t min_block_tokens = 16, max_block_tokens = 1U << 22;

/// Parameters of a store.
struct StoreSpec {
  std::uint32_t vocab_size = 0;  ///< every id is below it
  std::uint32_t separator = 0;   ///< the id after every document
  Digest tokenizer;              ///< fingerprint of the tokenizer
  StoreCodec codec = StoreCodec::zstd;
  std::int32_t level = 1;              ///< zstd: -7 to 19; LZ4: 1, or 3 to 12 (its HC mode); none: 0
  std::uint32_t block_tokens = 65536;  ///< ids in each block except the last

  friend bool operator==(const StoreSpec&, const StoreSpec&) = default;
  /// Bytes of an id before compression: 1, 2 or 4, as few as the vocabulary allows.
  [[nodiscard]] std::uint32_t stored_width() const { return vocab_size <= 256 ? 1 : id_width(vocab_size); }
  /// Bytes of an id as a TokenSource returns it: 2 or 4.
  [[nodiscard]] std::uint32_t width() const { return id_width(vocab_size); }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(vocab_size, separator, tokenizer, codec, level, block_tokens);
  }
};

/// Counts of the text that a store was made from.
struct StoreSource {
  std::uint64_t bytes = 0;    ///< bytes of text read
  std::uint64_t empty = 0;    ///< documents without a byte, which were left out
  std::uint64_t skipped = 0;  ///< bad documents, also left out

  friend bool operator==(const StoreSource&, const StoreSource&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(bytes, empty, skipped);
  }
};

struct StoreInfo {
  StoreSpec spec;
  StoreSource source;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t data_bytes = 0;      ///< bytes of all blocks
  std::uint32_t largest_record = 0;  ///< bytes of the largest block
  Digest entries;                    ///< SHA-256 of the index's entries, and so of the checksums of all
                                     ///< blocks
  /// Hash of the tokenizer's fingerprint, the number of ids and the entries: equal only if the ids and the
  /// way they are stored are equal.
  Digest fingerprint;

  [[nodiscard]] std::uint64_t blocks() const {
    return tokens / spec.block_tokens + (tokens % spec.block_tokens != 0 ? 1 : 0);
  }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(spec, source, tokens, documents, data_bytes, largest_record, entries);
  }
};

/// Throws Error(config) with the value that is out of range.
void check(const StoreSpec& spec);
/// Throws Error(config) for an unknown name.
[[nodiscard]] StoreCodec store_codec(std::string_view name);

/// Whether `folder` contains a store's index, intact or not.
[[nodiscard]] bool is_store(const std::filesystem::path& folder);

/// Reads and checks the whole index. Throws Error(data) naming file, offset and reason.
[[nodiscard]] StoreInfo store_info(const std::filesystem::path& folder);

/// Reads and checks everything. Calls `bad` with a message for each damaged block, and `progress` with the
/// number of blocks read after every block. Throws Error(data) if the index is damaged.
void verify_store(const std::filesystem::path& folder, const std::function<void(const std::string&)>& bad,
                  const std::function<void(std::uint64_t blocks)>& progress);

}  // namespace isthmus::data
