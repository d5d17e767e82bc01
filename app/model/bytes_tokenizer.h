#pragma once
// The tokenizer `bytes` for those who read tokenizer.json.

#include <string>

namespace isthmus::app {

inline constexpr const char* bytes_separator = "<|endoftext|>";

/// The file: a token for each byte, with the same ids. 0, which no text holds, ends documents, so that there
/// is none for the byte 0.
[[nodiscard]] std::string bytes_tokenizer();

}  // namespace isthmus::app
