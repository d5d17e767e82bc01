#pragma once
// The file names of a store and the format of its index (docs/data.md).

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/data/store.h"

namespace isthmus::data::store {

inline constexpr const char* index_name = "index";
inline constexpr const char* blocks_name = "blocks";
/// Exists only while a store is incomplete.
inline constexpr const char* journal_name = "journal";

inline constexpr std::string_view magic = "ISTHDATA";
inline constexpr std::uint32_t version = 1;

/// A block's entry in the index.
struct Entry {
  std::uint64_t end = 0;        ///< offset in the file of blocks at which it ends and the next one begins
  std::uint32_t checksum = 0;   ///< CRC32C of its bytes
  std::uint32_t documents = 0;  ///< documents that begin in it
  std::uint64_t first = 0;      ///< its first id: also the target of the last id of the previous block
};
inline constexpr std::size_t entry_bytes = 24;
static_assert(sizeof(Entry) == entry_bytes);

/// Magic, version, the serialized StoreInfo, and the SHA-256 of all that.
inline constexpr std::size_t header_bytes = 8 + 4 + 49 + 24 + 3 * 8 + 4 + 32 + 32;

[[nodiscard]] Bytes header_of(const StoreInfo& info);

/// Checks everything that the header alone can show. Throws Error(data) that begins with `name`.
[[nodiscard]] StoreInfo parse_header(std::span<const std::byte, header_bytes> bytes, const std::string& name);

/// Maximum bytes of a block.
[[nodiscard]] std::uint64_t max_record_bytes(const StoreSpec& spec);

}  // namespace isthmus::data::store
