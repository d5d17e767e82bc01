#pragma once
// Reads Megatron-LM's indexed data sets: PREFIX.bin holds the ids, PREFIX.idx the positions where sequences
// and documents begin (megatron/core/datasets/indexed_dataset.py).

#include <filesystem>
#include <memory>
#include <optional>

#include "ids/token_source.h"

namespace isthmus::data {

/// The prefix of a data set, given the prefix or the path of the .bin or .idx file. Nullopt if there is no
/// .idx file.
[[nodiscard]] std::optional<std::filesystem::path> megatron_prefix(const std::filesystem::path& path);

/// Opens PREFIX.idx and PREFIX.bin. Reads the whole index once to check it, and keeps nothing of it: magic,
/// version 1, ids of uint16 or int32, sequences that fill the .bin file one after another, documents in
/// order. The held-out part begins with a document, unless that would make it more than twice the requested
/// size. Throws Error(data) naming file, offset, value and what was expected.
[[nodiscard]] std::unique_ptr<TokenSource> open_megatron(const std::filesystem::path& prefix);

}  // namespace isthmus::data
