#pragma once
// The chunk store: token ids in compressed blocks, a folder of two files (docs/data.md has the format). What
// is known of one without reading its blocks, and whether all of it is as it was written.

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

/// What a store is made with.
struct StoreSpec {
  std::uint32_t vocab_size = 0;  ///< every id is below it
  std::uint32_t separator = 0;   ///< the id behind every document
  Digest tokenizer;              ///< its fingerprint
  StoreCodec codec = StoreCodec::zstd;
  std::int32_t level = 1;              ///< zstd: -7 to 19; LZ4: 1, or 3 to 12 (its HC mode); none: 0
  std::uint32_t block_tokens = 65536;  ///< ids in each block but the last

  friend bool operator==(const StoreSpec&, const StoreSpec&) = default;
  /// Bytes of an id as it is compressed: 1, 2 or 4, as few as the vocabulary allows.
  [[nodiscard]] std::uint32_t stored_width() const { return vocab_size <= 256 ? 1 : id_width(vocab_size); }
  /// Bytes of an id as a TokenSource gives it: 2 or 4.
  [[nodiscard]] std::uint32_t width() const { return id_width(vocab_size); }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(vocab_size, separator, tokenizer, codec, level, block_tokens);
  }
};

/// What the texts were that a store was made of.
struct StoreSource {
  std::uint64_t bytes = 0;    ///< that were read
  std::uint64_t empty = 0;    ///< documents without a byte, which were left out
  std::uint64_t skipped = 0;  ///< bad documents, likewise

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
  std::uint64_t data_bytes = 0;      ///< of all blocks
  std::uint32_t largest_record = 0;  ///< bytes of the largest block
  Digest entries;                    ///< SHA-256 of the index's entries, and so of all blocks' checksums
  /// Of the tokenizer, the number of ids and the entries: equal where the ids are, and how they are stored.
  Digest fingerprint;

  [[nodiscard]] std::uint64_t blocks() const {
    return tokens / spec.block_tokens + (tokens % spec.block_tokens != 0 ? 1 : 0);
  }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(spec, source, tokens, documents, data_bytes, largest_record, entries);
  }
};

/// Throws Error(config) naming what is out of range.
void check(const StoreSpec& spec);
/// Throws Error(config) for any other name.
[[nodiscard]] StoreCodec store_codec(std::string_view name);

/// Whether there is a folder with a store's index in it, whatever state that is in.
[[nodiscard]] bool is_store(const std::filesystem::path& folder);

/// Reads the whole index. Throws Error(data) naming file, offset and reason.
[[nodiscard]] StoreInfo store_info(const std::filesystem::path& folder);

/// Reads everything and checks it. Each block that is not as it was written is told to `bad`; `progress`
/// hears after every block how many have been read. Throws Error(data) where the index is not sound.
void verify_store(const std::filesystem::path& folder, const std::function<void(const std::string&)>& bad,
                  const std::function<void(std::uint64_t blocks)>& progress);

}  // namespace isthmus::data
