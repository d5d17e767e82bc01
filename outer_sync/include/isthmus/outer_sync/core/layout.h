#pragma once
// How the flat parameter buffer is divided into fragments (the unit of synchronisation) and chunks (the unit
// of ownership, transfer, retry and reduction). The division is the same on all members and never changes
// during a run.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::outer_sync {

/// Elements [begin, begin + size) of the flat buffer.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  [[nodiscard]] std::uint64_t end() const { return begin + size; }
  friend bool operator==(const Range&, const Range&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin, size);
  }
};

using FragmentId = std::uint32_t;
using ChunkId = std::uint32_t;  ///< numbered through all fragments in order

/// Fragments in buffer order, without overlap; gaps between them are alignment padding and stay zero.
class FragmentLayout {
 public:
  FragmentLayout() = default;
  /// `chunk_elements` must be a multiple of the codec's block size, so that no chunk boundary splits a block;
  /// it is not rounded here. The last `averaged` fragments hold values that no optimizer trains. Throws
  /// Error(config) for an empty fragment, overlapping fragments or a zero `chunk_elements`.
  FragmentLayout(std::vector<Range> fragments, std::uint64_t chunk_elements, FragmentId averaged = 0);

  [[nodiscard]] std::span<const Range> fragments() const { return fragments_; }
  [[nodiscard]] FragmentId fragment_count() const { return static_cast<FragmentId>(fragments_.size()); }
  [[nodiscard]] ChunkId chunk_count() const { return static_cast<ChunkId>(chunks_.size()); }
  [[nodiscard]] const Range& fragment(FragmentId p) const { return fragments_.at(p); }
  [[nodiscard]] const Range& chunk(ChunkId k) const { return chunks_.at(k); }
  /// Whether the outer step only averages this fragment: learning rate 1 and no momentum.
  [[nodiscard]] bool averages(FragmentId p) const { return p + averaged_ >= fragment_count(); }
  [[nodiscard]] FragmentId averaged_fragments() const { return averaged_; }
  /// Chunks [first, last) of a fragment.
  struct ChunkSpan {
    ChunkId first, last;
    [[nodiscard]] ChunkId size() const { return last - first; }
  };
  [[nodiscard]] ChunkSpan chunks_of(FragmentId p) const {
    return {first_chunk_.at(p), first_chunk_.at(p + 1)};
  }
  [[nodiscard]] FragmentId fragment_of(ChunkId k) const { return fragment_of_.at(k); }
  /// Offset of a chunk's first element in its fragment.
  [[nodiscard]] std::uint64_t place_in_fragment(ChunkId k) const {
    return chunk(k).begin - fragment(fragment_of(k)).begin;
  }
  /// Elements of a full chunk.
  [[nodiscard]] std::uint64_t chunk_elements() const { return chunk_elements_; }
  /// Length of the flat buffer that holds all fragments.
  [[nodiscard]] std::uint64_t buffer_size() const { return fragments_.empty() ? 0 : fragments_.back().end(); }
  /// Elements in all fragments.
  [[nodiscard]] std::uint64_t parameters() const;

 private:
  std::vector<Range> fragments_;
  std::uint64_t chunk_elements_ = 0;
  FragmentId averaged_ = 0;
  std::vector<Range> chunks_;
  std::vector<ChunkId> first_chunk_;
  std::vector<FragmentId> fragment_of_;
};

}  // namespace isthmus::outer_sync
