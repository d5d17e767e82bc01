#pragma once
// How much memory the outer loop of one replica can take. It depends on the config and the view, never on how
// long a peer stands still.

#include <cstddef>
#include <cstdint>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// In bytes.
struct MemoryBound {
  std::uint64_t state = 0;  ///< global parameters, momentum, residuals; on a GPU replica in its memory
  std::uint64_t usual = 0;  ///< chunks, while everybody keeps up; kept for use again
  std::uint64_t most = 0;   ///< chunks, whatever peers do or do not do
};

/// Of a replica in this view, with the chunks that it owns there.
[[nodiscard]] MemoryBound memory_bound(const OuterConfig& config, const FragmentLayout& layout,
                                       const protocol::View& view, protocol::MemberIndex self);

/// Chunk buffers that are kept for use again. What a round holds at once: of every chunk our contribution and
/// the result, and contributions of M members to one chunk in M. Twice that, since two rounds of a fragment
/// may be there.
[[nodiscard]] std::size_t usual_chunks(const FragmentLayout& layout);

/// Bytes that may wait for one peer or be under way to it: somewhat more than all that the protocol may have
/// to repeat when the peer is there again.
[[nodiscard]] std::size_t max_queued(const FragmentLayout& layout, const protocol::CodecPlan& codecs);

}  // namespace isthmus::outer_sync
