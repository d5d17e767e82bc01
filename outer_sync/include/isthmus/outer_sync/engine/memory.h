#pragma once
// Upper bounds of the memory used by one replica's outer loop. They depend on the config and the view, never
// on how long a peer stalls.

#include <cstddef>
#include <cstdint>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// In bytes.
struct MemoryBound {
  std::uint64_t state = 0;  ///< global parameters, momentum, residuals; on a GPU replica in GPU memory
  std::uint64_t usual = 0;  ///< chunk buffers while all members keep up; kept for reuse
  std::uint64_t most = 0;   ///< chunk buffers in any case, even if peers stall
};

/// For a replica in this view, with the chunks that it owns there.
[[nodiscard]] MemoryBound memory_bound(const OuterConfig& config, const FragmentLayout& layout,
                                       const protocol::View& view, protocol::MemberIndex self);

/// Chunk buffers kept for reuse. One round needs three per chunk: our contribution, the result, and M
/// contributions to the one chunk in M that we own. Two rounds of a fragment may overlap, so twice that.
[[nodiscard]] std::size_t usual_chunks(const FragmentLayout& layout);

/// Maximum bytes queued for or in flight to one peer: somewhat more than what the protocol may have to resend
/// when the peer returns.
[[nodiscard]] std::size_t max_queued(const FragmentLayout& layout, const protocol::CodecPlan& codecs);

}  // namespace isthmus::outer_sync
