#pragma once
// Reads text into memory and tokenises it.

#include <memory>
#include <string>
#include <vector>

#include "ids/token_source.h"
#include "isthmus/data/config.h"
#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

/// Reads the text or JSONL file at `path`, or a folder of those, up to `data.max_bytes`, with a separator
/// after each document. Holds out whole files of a folder. Adds sentences for the user to `notes`. Throws
/// Error(data) that begins with `name` if there is no text, and what for_each_document throws.
[[nodiscard]] std::unique_ptr<TokenSource> read_text(const std::string& path, const std::string& name,
                                                     const DataConfig& config, const Tokenizer& tokenizer,
                                                     std::vector<std::string>& notes);

}  // namespace isthmus::data
