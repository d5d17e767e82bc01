#pragma once
// The parts of a sequence that attention computes one by one if it is bounded by documents: a document, or
// several short ones. Tokens of different parts do not attend to each other, so the work is the sum of the
// parts' squared lengths, not the square of the sum.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::trainer {

struct DocumentSpan {
  std::int64_t begin = 0, size = 0;
  friend bool operator==(const DocumentSpan&, const DocumentSpan&) = default;
};

/// `begins`: where the document of each token begins. Short documents are joined until they have this many
/// tokens: the product of a shorter part takes less time than its call.
inline constexpr std::int64_t min_span = 128;
[[nodiscard]] std::vector<DocumentSpan> document_spans(std::span<const std::int32_t> begins);

}  // namespace isthmus::trainer
