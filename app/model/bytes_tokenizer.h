#pragma once
// The `bytes` tokenizer as a tokenizer.json.

#include <string>

namespace isthmus::app {

inline constexpr const char* bytes_separator = "<|endoftext|>";

/// The contents of the file: one token per byte, with the same ids. Id 0 ends documents, so the byte 0, which
/// texts do not contain, has no token.
[[nodiscard]] std::string bytes_tokenizer();

}  // namespace isthmus::app
