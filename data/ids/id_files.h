#pragma once
// Opens formats that hold little but ids: nanoGPT's and llm.c's .bin files, and folders of their shards.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ids/token_source.h"
#include "isthmus/base/file.h"

namespace isthmus::data {

/// Opens one .bin file. Its ids are read from disk as they are used:
/// - nanoGPT (github.com/karpathy/nanoGPT, data/*/prepare.py): uint16 ids, nothing else.
/// - llm.c (github.com/karpathy/llm.c, dev/data/data_common.py): a header of 256 int32, the first three of
///   which are magic, version and number of ids (20240520, 1: uint16; 20240801, 7: uint32), then the ids.
/// The first number of the file decides the format. The held-out part begins after the last `separator`, if
/// one is given and near enough, so that no document is in both parts. Throws Error(data) naming file, offset
/// and what was expected.
[[nodiscard]] std::unique_ptr<TokenSource> open_id_file(const std::filesystem::path& file,
                                                        std::optional<std::uint32_t> separator);

/// Joins at least one file into one sequence of ids, as for shards. All must have one width, else throws
/// Error(data). The held-out part begins where it would in one file with all their ids.
[[nodiscard]] std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources,
                                                        std::optional<std::uint32_t> separator);

/// The start of the first whole document of a held-out part: after the last `separator` before the last
/// `wanted` ids of `source`. Looks at most `wanted` ids, and at most 4 Mi, farther back; nullopt if no
/// separator is there.
[[nodiscard]] std::optional<std::uint64_t> begin_of_document(const TokenSource& source, std::uint64_t wanted,
                                                             std::uint32_t separator);

/// Bytes to read together in a file that has no blocks: large enough for a disk's full speed, small enough
/// for an epoch to have many to shuffle.
inline constexpr std::uint64_t block_bytes = 128 << 10;

/// Hash of a file's content: all of it up to 256 MiB, else 256 evenly spaced MiB.
[[nodiscard]] Digest sampled_hash(const File& file, std::string_view kind);

}  // namespace isthmus::data
