#include "replica/shares.h"

#include <algorithm>

#include "isthmus/trainer/rank_group.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

using outer_sync::Range;

Range share_of(std::uint64_t rank, std::uint64_t ranks, std::uint64_t size) {
  constexpr std::uint64_t alignment = 64;  // a cache line of bf16, two of fp32
  const auto lines = (size + alignment - 1) / alignment;
  const auto each = (lines + ranks - 1) / ranks * alignment;
  const auto begin = std::min(rank * each, size);
  return {begin, std::min(each, size - begin)};
}

Range common(Range a, Range b) {
  const auto begin = std::clamp(b.begin, a.begin, a.end());
  const auto end = std::clamp(b.end(), begin, a.end());
  return {begin, end - begin};
}

std::vector<DecaySegment> segments_in(std::span<const DecaySegment> segments, Range share) {
  std::vector<DecaySegment> parts;
  for (const auto& segment : segments) {
    const auto part = common(share, segment.range);
    if (part.size > 0) parts.push_back({{part.begin - share.begin, part.size}, segment.decay});
  }
  return parts;
}

void share_parameters(Replica& replica, RankGroup& group, const RankGroupOptions& options) {
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    const auto part = share_of(rank, options.ranks, replica.table().buffer_size());
    group.broadcast(replica.Replica::device_values(part), rank);
    if (rank != options.rank && part.size > 0) replica.Replica::modified_on_device(part);
  }
}

void average_parameters(Replica& replica, RankGroup& group, Range range) {
  group.mean(replica.Replica::device_values(range));
  replica.Replica::modified_on_device(range);
}

void average_moments(Replica& replica, RankGroup& group) {
  for (const auto moment : replica.device_moments()) group.mean(moment);
}

void give_moments(Replica& replica, RankGroup& group, Range range) {
  for (const auto moment : replica.device_moments())
    group.broadcast(moment.subspan(range.begin, range.size), 0);
}

}  // namespace isthmus::trainer
