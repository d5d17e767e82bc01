#pragma once
// Megatron-LM's indexed data sets: PREFIX.bin holds the ids, PREFIX.idx says where sequences and documents
// begin (megatron/core/datasets/indexed_dataset.py).

#include <filesystem>
#include <memory>
#include <optional>

#include "token_source.h"

namespace isthmus::data {

/// The prefix that `path` stands for: it may be named itself or with .bin or .idx at its end. Nothing if
/// there is no .idx file.
[[nodiscard]] std::optional<std::filesystem::path> megatron_prefix(const std::filesystem::path& path);

/// Opens PREFIX.idx and PREFIX.bin. The index is read through once and checked: magic, version 1, ids of
/// uint16 or int32, sequences one after another from the first byte of the .bin file to its last, documents
/// in order. The held-out part begins with a document, unless it were more than twice what is asked for then.
/// Nothing of the index is kept. Throws Error(data) naming file, offset, value and what was expected.
[[nodiscard]] std::unique_ptr<TokenSource> open_megatron(const std::filesystem::path& prefix);

}  // namespace isthmus::data
