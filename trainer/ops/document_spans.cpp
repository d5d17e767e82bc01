#include "ops/document_spans.h"

#include <cstddef>

namespace isthmus::trainer {

std::vector<DocumentSpan> document_spans(std::span<const std::int32_t> begins) {
  std::vector<DocumentSpan> spans;
  for (std::size_t t = 0; t < begins.size(); ++t) {
    const auto position = static_cast<std::int64_t>(t);
    const bool begins_here = begins[t] == position;
    if (begins_here && (spans.empty() || spans.back().size >= min_span)) spans.push_back({position, 0});
    ++spans.back().size;
  }
  return spans;
}

}  // namespace isthmus::trainer
