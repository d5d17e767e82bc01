#pragma once
// Byte-level BPE (GPT-2's kind: Radford et al. 2019, section 2.2) from a Hugging Face tokenizer.json.

#include <memory>
#include <string>
#include <string_view>

#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

/// Throws Error(config) naming the file and what is wrong with it.
[[nodiscard]] std::unique_ptr<const Tokenizer> read_bpe_tokenizer(const std::string& file);

/// Parses the content of a file; errors call the file `name`.
[[nodiscard]] std::unique_ptr<const Tokenizer> parse_bpe_tokenizer(std::string_view json,
                                                                   const std::string& name);

}  // namespace isthmus::data
