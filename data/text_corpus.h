#pragma once
// Text as a corpus: read and tokenised into memory.

#include <memory>
#include <string>
#include <vector>

#include "isthmus/data/config.h"
#include "isthmus/data/tokenizer.h"
#include "token_source.h"

namespace isthmus::data {

/// The text or JSONL file, or the folder of such, at `path`, up to `data.max_bytes`, a separator behind each
/// document. What is held out of a folder are whole files. `notes` get sentences for the user. Throws
/// Error(data) that begins with `name` where there is no text, and what for_each_document throws.
[[nodiscard]] std::unique_ptr<TokenSource> read_text(const std::string& path, const std::string& name,
                                                     const DataConfig& config, const Tokenizer& tokenizer,
                                                     std::vector<std::string>& notes);

}  // namespace isthmus::data
