#pragma once
// How a file holds documents.

#include <cstdint>

namespace isthmus::data {

enum class DocumentFormat : std::uint8_t {
  text,   ///< the file is one document
  jsonl,  ///< each line is a JSON object with the document in one of its fields
};

}  // namespace isthmus::data
