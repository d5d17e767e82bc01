#pragma once
// How one flat buffer is shared out among the ranks of a replica, for ZeRO-1 (Rajbhandari et al., "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054, P_os).

#include <span>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/trainer/adamw.h"

namespace isthmus::trainer {

/// Rank's part of [0, size): contiguous, in the order of the ranks, of equal length but for the end; it
/// begins at a multiple of 64 elements. Empty where there are more ranks than such parts.
[[nodiscard]] outer_sync::Range share_of(std::uint64_t rank, std::uint64_t ranks, std::uint64_t size);

/// What two ranges have in common; empty (and within `a`) where that is nothing.
[[nodiscard]] outer_sync::Range common(outer_sync::Range a, outer_sync::Range b);

/// The parts of the segments that lie in the share, counted from its begin.
[[nodiscard]] std::vector<DecaySegment> segments_in(std::span<const DecaySegment> segments,
                                                    outer_sync::Range share);

class RankGroup;
class Replica;
struct RankGroupOptions;
/// Each rank's share of the parameters to all others, and to the model's bf16 twin.
void share_parameters(Replica& replica, RankGroup& group, const RankGroupOptions& options);

}  // namespace isthmus::trainer
