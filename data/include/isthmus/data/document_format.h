#pragma once
// How documents stand in a file.

#include <cstdint>

namespace isthmus::data {

enum class DocumentFormat : std::uint8_t {
  text,   ///< the file is one document
  jsonl,  ///< each line is an object of JSON, whose text is one of its fields
};

}  // namespace isthmus::data
