#pragma once
// Operations of all ranks of a replica on their flat buffers: each holds a share, for ZeRO-1 (Rajbhandari et
// al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", arXiv 1910.02054, P_os), or
// all average them.

#include <span>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/trainer/adamw.h"

namespace isthmus::trainer {

/// The rank's part of [0, size): contiguous, in the order of the ranks, beginning at a multiple of 64
/// elements, and of equal length except at the end. Empty if there are more ranks than such parts.
[[nodiscard]] outer_sync::Range share_of(std::uint64_t rank, std::uint64_t ranks, std::uint64_t size);

/// The intersection of two ranges; if it is empty, a position within `a`.
[[nodiscard]] outer_sync::Range common(outer_sync::Range a, outer_sync::Range b);

/// The parts of the segments that are in the share, relative to its start.
[[nodiscard]] std::vector<DecaySegment> segments_in(std::span<const DecaySegment> segments,
                                                    outer_sync::Range share);

class RankGroup;
class Replica;
struct RankGroupOptions;
/// Sends each rank's share of the parameters to all other ranks, and updates the model's bf16 twin.
void share_parameters(Replica& replica, RankGroup& group, const RankGroupOptions& options);

// All ranks call these at once, without shares.

/// Averages a range of the parameters, and updates the model's bf16 twin.
void average_parameters(Replica& replica, RankGroup& group, outer_sync::Range range);
void average_moments(Replica& replica, RankGroup& group);
/// Sends rank 0's moments of a range to the others.
void give_moments(Replica& replica, RankGroup& group, outer_sync::Range range);

}  // namespace isthmus::trainer
