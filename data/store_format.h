#pragma once
// A store's files and the index's bytes (docs/data.md).

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
/// Of one that is not complete.
inline constexpr const char* journal_name = "journal";

inline constexpr std::string_view magic = "ISTHDATA";
inline constexpr std::uint32_t version = 1;

/// Of one block.
struct Entry {
  std::uint64_t end = 0;        ///< offset behind it in the file of blocks; the next one begins there
  std::uint32_t checksum = 0;   ///< CRC32C of its bytes
  std::uint32_t documents = 0;  ///< that begin in it
  std::uint64_t first = 0;      ///< its first id: the target of the last one of the block before
};
inline constexpr std::size_t entry_bytes = 24;
static_assert(sizeof(Entry) == entry_bytes);

/// Magic, version, what StoreInfo serializes, and the SHA-256 of all that.
inline constexpr std::size_t header_bytes = 8 + 4 + 49 + 24 + 3 * 8 + 4 + 32 + 32;

[[nodiscard]] Bytes header_of(const StoreInfo& info);

/// Checks all that can be checked by the header alone. Throws Error(data) that begins with `name`.
[[nodiscard]] StoreInfo parse_header(std::span<const std::byte, header_bytes> bytes, const std::string& name);

/// Bytes that a block with so many ids may have at most.
[[nodiscard]] std::uint64_t max_record_bytes(const StoreSpec& spec);

}  // namespace isthmus::data::store
