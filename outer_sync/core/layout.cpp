#include "isthmus/outer_sync/core/layout.h"

#include <algorithm>
#include <string>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

const char* fragment_problem(const Range& fragment, std::uint64_t end_of_previous) {
  if (fragment.size == 0) return "empty";
  if (fragment.end() < fragment.begin) return "too long";
  if (fragment.begin < end_of_previous) return "overlapping the fragment before it";
  return nullptr;
}

void check(const std::vector<Range>& fragments, std::uint64_t chunk_elements) {
  if (fragments.empty()) throw Error(ErrorKind::config, "a parameter buffer needs at least one fragment");
  if (chunk_elements == 0) throw Error(ErrorKind::config, "outer.chunk_elements is 0; expected at least 1");
  std::uint64_t end = 0;
  for (std::size_t p = 0; p < fragments.size(); ++p) {
    if (const auto* problem = fragment_problem(fragments[p], end)) {
      throw Error(ErrorKind::config, "fragment " + std::to_string(p) + " is " + problem);
    }
    end = fragments[p].end();
  }
}

}  // namespace

FragmentLayout::FragmentLayout(std::vector<Range> fragments, std::uint64_t chunk_elements,
                               FragmentId averaged)
    : fragments_(std::move(fragments)), chunk_elements_(chunk_elements), averaged_(averaged) {
  check(fragments_, chunk_elements);
  if (averaged >= fragments_.size())
    throw Error(ErrorKind::config, "no fragment has parameters: all are averaged");
  for (FragmentId p = 0; p < fragments_.size(); ++p) {
    first_chunk_.push_back(static_cast<ChunkId>(chunks_.size()));
    const auto& fragment = fragments_[p];
    for (auto at = fragment.begin; at < fragment.end(); at = chunks_.back().end()) {
      chunks_.push_back({at, std::min(chunk_elements, fragment.end() - at)});
      fragment_of_.push_back(p);
    }
  }
  first_chunk_.push_back(static_cast<ChunkId>(chunks_.size()));
}

std::uint64_t FragmentLayout::parameters() const {
  std::uint64_t sum = 0;
  for (const auto& fragment : fragments_) sum += fragment.size;
  return sum;
}

}  // namespace isthmus::outer_sync
