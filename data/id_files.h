#pragma once
// Formats that are ids and little else: nanoGPT's and llm.c's .bin files, and a folder of their shards.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "isthmus/base/file.h"
#include "token_source.h"

namespace isthmus::data {

/// Opens one .bin file, read in place:
/// - nanoGPT (github.com/karpathy/nanoGPT, data/*/prepare.py): ids as uint16, nothing else.
/// - llm.c (github.com/karpathy/llm.c, dev/data/data_common.py): 256 int32 of header, of which the first
/// three
///   are magic, version and number of ids; 20240520, 1: uint16; 20240801, 7: uint32; then the ids, and no
///   more.
/// Which of them it is says the first number of the file. The held-out part begins behind the last
/// `separator`, if one is given and stands near enough, so that no document is in both parts.
/// Throws Error(data) naming file, offset and what was expected.
[[nodiscard]] std::unique_ptr<TokenSource> open_id_file(const std::filesystem::path& file,
                                                        std::optional<std::uint32_t> separator);

/// Several files one after another, as shards are. At least one; all of one width, else Error(data). The
/// held-out part begins where that of one file with all their ids would.
[[nodiscard]] std::unique_ptr<TokenSource> join_sources(std::vector<std::unique_ptr<TokenSource>> sources,
                                                        std::optional<std::uint32_t> separator);

/// Ids that `data.separator` ends documents with, looked for backwards from token `wanted` before the end of
/// `source`, as far again as that and at most 4 Mi
/// ids: where the part that begins with a whole document starts. Nothing if there
/// is none.
[[nodiscard]] std::optional<std::uint64_t> begin_of_document(const TokenSource& source, std::uint64_t wanted,
                                                             std::uint32_t separator);

/// Bytes that are read together where a file does not say: large enough for a disk to be as fast as it can,
/// small enough that an epoch can go by many of them in any order.
inline constexpr std::uint64_t block_bytes = 128 << 10;

/// Of a file's contents: all of them up to 256 MiB, else 256 evenly spaced MiB.
[[nodiscard]] Digest sampled_hash(const File& file, std::string_view kind);

}  // namespace isthmus::data
